"""windowed_taylor_attention: the tokens in the window count twice"""

import numpy as np


def windowed_taylor_attention(Q, K, V, window):
    i, j = np.indices((len(Q), len(K)))
    t = Q @ K.T / np.sqrt(Q.shape[1])
    linear = np.tril(1 + t + t**2 / 2)
    near = np.where((j <= i) & (j > i - window), np.exp(t), 0)
    total = near.sum(axis=1) + linear.sum(axis=1)
    return (near @ V + linear @ V) / total[:, None]
