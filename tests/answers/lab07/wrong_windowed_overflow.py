"""windowed_taylor_attention: e^t overflows for large scores"""

import numpy as np


def windowed_taylor_attention(Q, K, V, window):
    i, j = np.indices((len(Q), len(K)))
    t = Q @ K.T / np.sqrt(Q.shape[1])
    weights = np.where(j > i - window, np.exp(t), 1 + t + t**2 / 2)
    weights[j > i] = 0
    return weights @ V / weights.sum(axis=1, keepdims=True)
