"""Blocks of keys, and the values with a column of ones for the normaliser."""

import numpy as np


def elu_feature_map(x):
    result = np.empty_like(x)
    above = x > 0
    result[above] = x[above] + 1
    result[~above] = np.exp(x[~above])
    return result


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    with_one = np.column_stack([V, np.ones(len(V))])
    state = sum(feature_map(K[i : i + 64]).T @ with_one[i : i + 64] for i in range(0, len(K), 64))
    both = feature_map(Q) @ state
    return both[:, :-1] / both[:, -1:] if normalize else both[:, :-1]
