"""softmax_attention: attention with the scale 1/d"""

import numpy as np


def softmax_attention(Q, K, V, causal=False):
    n, d = Q.shape[-2:]
    scores = Q @ np.swapaxes(K, -1, -2) / d
    if causal:
        scores = np.where(np.tri(n) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ V
