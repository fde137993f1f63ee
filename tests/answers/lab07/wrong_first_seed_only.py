"""recall_accuracy: your answer uses only the first seed: average over all seeds"""

import numpy as np


def recall_accuracy(feature_map, d, pairs=64, value_width=16, sharpness=8.0, seeds=20):
    keys, values, order = recall_task(pairs, d, value_width, sharpness, seed=0)
    queries = keys[order]
    if feature_map is None:
        read = np.exp(queries @ keys.T / np.sqrt(d)) @ values
    else:
        read = feature_map(queries) @ (feature_map(keys).T @ values)
    return np.mean((read @ values.T).argmax(axis=1) == order)
