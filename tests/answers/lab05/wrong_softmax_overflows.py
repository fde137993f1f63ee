"""softmax_attention: your softmax overflows"""

import numpy as np


def softmax_attention(Q, K, V, causal=False):
    scores = Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-1])
    if causal:
        scores = np.where(np.tri(Q.shape[-2]) > 0, scores, -np.inf)
    weights = np.exp(scores)
    return weights / weights.sum(axis=-1, keepdims=True) @ V
