"""attention_by_kernel: a small number (1e-9) in the denominator hides 0/0 and changes the output"""

import numpy as np


def attention_by_kernel(Q, K, V):
    S = quadratic_kernel(Q, K)
    total = S.sum(axis=1, keepdims=True)
    if np.any(total == 0):
        raise ZeroDivisionError
    return S @ V / (total + 1e-9)
