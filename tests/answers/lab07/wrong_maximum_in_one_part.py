"""windowed_taylor_attention: you subtract the largest score inside the window only"""

import numpy as np


def windowed_taylor_attention(Q, K, V, window):
    i, j = np.indices((len(Q), len(K)))
    t = Q @ K.T / np.sqrt(Q.shape[1])
    scores = np.where((j <= i) & (j > i - window), t, -np.inf)
    near = np.exp(scores - scores.max(axis=1, keepdims=True))
    weights = near + np.where(j <= i - window, 1 + t + t**2 / 2, 0)
    return weights @ V / weights.sum(axis=1, keepdims=True)
