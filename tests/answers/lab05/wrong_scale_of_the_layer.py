"""multi_head_attention: your scale is 1/√d, but d is the width of the layer: each head uses"""

import numpy as np


def multi_head_attention(X, W_q, W_k, W_v, W_o, heads, causal=False):
    Q, K, V = (split_heads(X @ W, heads) for W in (W_q, W_k, W_v))
    scores = Q @ np.swapaxes(K, -1, -2) / np.sqrt(X.shape[-1])
    if causal:
        scores = np.where(np.tri(X.shape[-2]) > 0, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return combine_heads(weights @ V) @ W_o
