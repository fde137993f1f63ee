"""svm_dual: β is not optimal: the duality gap is"""

import numpy as np


def svm_dual(K, y, C):
    Q = np.outer(y, y) * K
    beta = np.zeros(len(y))
    for _ in range(10):
        beta = np.clip(beta + 0.01 * (1 - Q @ beta), 0, C)
    return beta
