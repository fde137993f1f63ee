"""windowed_taylor_attention: you average the output of the window and the output of the"""

import numpy as np


def windowed_taylor_attention(Q, K, V, window):
    t = Q @ K.T / np.sqrt(Q.shape[1])
    linear = np.tril(1 + t + t**2 / 2)
    linear /= linear.sum(axis=1, keepdims=True)
    return (sliding_window_attention(Q, K, V, window) + linear @ V) / 2
