"""attention_by_kernel: your output matches a softmax on top of the similarities"""

import numpy as np


def attention_by_kernel(Q, K, V):
    S = (Q @ K.T + 1) ** 2
    weights = np.exp(S - S.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True) @ V
