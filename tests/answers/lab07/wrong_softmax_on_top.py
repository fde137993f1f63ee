"""based_weights: your weights are e^(1+t+t²/2), normalised: leave out the softmax, because"""

import numpy as np


def based_weights(x, W_q, W_k):
    q, k = x @ W_q, x @ W_k
    t = q @ k.T / np.sqrt(q.shape[1])
    scores = np.where(np.tri(len(x)) > 0, 1 + t + t**2 / 2, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)
