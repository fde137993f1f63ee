"""svm_dual: clip it to [0, C], above too"""

import numpy as np


def svm_dual(K, y, C):
    beta = np.zeros(len(y))
    for _ in range(1000):
        for i in range(len(y)):
            beta[i] = max(0, beta[i] + (1 - y[i] * (K[i] @ (y * beta))) / K[i, i])
    return beta
