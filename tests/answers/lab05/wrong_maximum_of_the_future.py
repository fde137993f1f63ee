"""softmax_attention: with causal=True you subtract the largest score of all keys, including"""

import numpy as np


def softmax_attention(Q, K, V, causal=False):
    scores = Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    if causal:
        weights = np.tril(weights)
    return weights / weights.sum(axis=-1, keepdims=True) @ V
