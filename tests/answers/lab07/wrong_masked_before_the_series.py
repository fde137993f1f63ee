"""based_weights: the future has the weight 1"""

import numpy as np


def based_weights(x, W_q, W_k):
    t = np.tril((x @ W_q) @ (x @ W_k).T / np.sqrt(W_q.shape[1]))
    weights = 1 + t + t**2 / 2
    return weights / weights.sum(axis=1, keepdims=True)
