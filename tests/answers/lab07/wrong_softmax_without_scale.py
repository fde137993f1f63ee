"""recall_accuracy: with feature_map=None your softmax lacks the scale 1/√d"""

import numpy as np


def recall_accuracy(feature_map, d, pairs=64, value_width=16, sharpness=8.0, seeds=20):
    shares = []
    for seed in range(seeds):
        keys, values, order = recall_task(pairs, d, value_width, sharpness, seed)
        queries = keys[order]
        if feature_map is None:
            read = np.exp(queries @ keys.T) @ values
        else:
            read = feature_map(queries) @ (feature_map(keys).T @ values)
        shares.append(np.mean((read @ values.T).argmax(axis=1) == order))
    return np.mean(shares)
