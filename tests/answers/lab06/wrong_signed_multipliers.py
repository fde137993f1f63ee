"""svm_dual: these are the coefficients αᵢ = yᵢβᵢ of f: return β"""

import numpy as np


def svm_dual(K, y, C):
    beta = np.zeros(len(y))
    for _ in range(1000):
        for i in range(len(y)):
            beta[i] = np.clip(beta[i] + (1 - y[i] * (K[i] @ (y * beta))) / K[i, i], 0, C)
    return y * beta
