"""recall_accuracy: you compare the answers with 0, 1, 2, …: query i asks for the pair order[i]"""

import numpy as np


def recall_accuracy(feature_map, d, pairs=64, value_width=16, sharpness=8.0, seeds=20):
    shares = []
    for seed in range(seeds):
        keys, values, order = recall_task(pairs, d, value_width, sharpness, seed)
        queries = keys[order]
        if feature_map is None:
            read = np.exp(queries @ keys.T / np.sqrt(d)) @ values
        else:
            read = feature_map(queries) @ (feature_map(keys).T @ values)
        shares.append(np.mean((read @ values.T).argmax(axis=1) == np.arange(pairs)))
    return np.mean(shares)
