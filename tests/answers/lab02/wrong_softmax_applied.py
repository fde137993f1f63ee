"""standard_attention_order: you apply a softmax: there is none here"""

import numpy as np


def standard_attention_order(Q, K, V):
    weights = np.exp(Q @ K.T)
    weights = weights / weights.sum(axis=1, keepdims=True)
    return weights @ V, weights
