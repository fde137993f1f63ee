"""elu_feature_map: your loops run over two axes"""

import numpy as np


def elu_feature_map(x):
    result = np.zeros_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            if x[i, j] > 0:
                result[i, j] = x[i, j] + 1
            else:
                result[i, j] = np.exp(x[i, j])
    return result
