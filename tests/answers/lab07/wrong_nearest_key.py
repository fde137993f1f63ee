"""recall_accuracy: you search for the key nearest to the query, which needs all the keys."""

import numpy as np


def recall_accuracy(feature_map, d, pairs=64, value_width=16, sharpness=8.0, seeds=20):
    shares = []
    for seed in range(seeds):
        keys, _, order = recall_task(pairs, d, value_width, sharpness, seed)
        phi = feature_map or identity
        weights = phi(keys[order]) @ phi(keys).T
        if feature_map is None:
            weights = np.exp(weights / np.sqrt(d))
        shares.append(np.mean(weights.argmax(axis=1) == order))
    return np.mean(shares)
