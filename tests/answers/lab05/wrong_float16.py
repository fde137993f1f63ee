"""softmax_attention: your numbers are of float16, which has three digits"""

import numpy as np


def softmax_attention(Q, K, V, causal=False):
    Q, K, V = Q.astype(np.float16), K.astype(np.float16), V.astype(np.float16)
    scores = Q @ np.swapaxes(K, -1, -2) / np.float16(np.sqrt(Q.shape[-1]))
    if causal:
        scores = np.where(np.tri(Q.shape[-2]) > 0, scores, np.float16(-np.inf))
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ V
