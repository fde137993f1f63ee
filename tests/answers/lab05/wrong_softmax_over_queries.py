"""softmax_attention: your softmax runs over the queries"""

import numpy as np


def softmax_attention(Q, K, V, causal=False):
    scores = Q @ np.swapaxes(K, -1, -2) / np.sqrt(Q.shape[-1])
    if causal:
        scores = np.where(np.tri(Q.shape[-2]) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-2, keepdims=True))
    weights = weights / weights.sum(axis=-2, keepdims=True)
    return weights @ V
