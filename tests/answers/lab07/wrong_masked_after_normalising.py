"""based_weights: you normalised before you masked the future, so rows add up to less than"""

import numpy as np


def based_weights(x, W_q, W_k):
    q, k = x @ W_q, x @ W_k
    t = q @ k.T / np.sqrt(q.shape[1])
    weights = 1 + t + t**2 / 2
    return np.tril(weights / weights.sum(axis=1, keepdims=True))
