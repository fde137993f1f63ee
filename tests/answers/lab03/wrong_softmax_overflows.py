"""compare_to_softmax: your softmax overflows: subtract the largest score of each row"""

import numpy as np


def _softmax_weights(Q, K, scale):
    scale = 1 / np.sqrt(Q.shape[1]) if scale is None else scale
    weights = np.exp(scale * (Q @ K.T))
    return weights / weights.sum(axis=1, keepdims=True)
