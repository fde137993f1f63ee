"""svm_dual: your β ignore the labels"""

import numpy as np


def svm_dual(K, y, C):
    beta = np.zeros(len(y))
    for _ in range(1000):
        for i in range(len(y)):
            beta[i] = np.clip(beta[i] + (1 - K[i] @ beta) / K[i, i], 0, C)
    return beta
