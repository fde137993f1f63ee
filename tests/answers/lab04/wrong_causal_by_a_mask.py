"""causal_attention_by_features: this forms an n×n array: peak memory grows as n²"""

import numpy as np


def causal_attention_by_features(Q, K, V):
    S = np.tril((Q @ K.T + 1) ** 2)
    return S @ V / S.sum(axis=1, keepdims=True)
