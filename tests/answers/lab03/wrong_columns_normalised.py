"""compute_implicit_attention: the columns add up to 1"""

import numpy as np


def compute_implicit_attention(Q, K, feature_map):
    weights = feature_map(Q) @ feature_map(K).T
    if np.any(weights.sum(axis=1) == 0):
        raise ZeroDivisionError
    return weights / weights.sum(axis=0)
