"""softmax_kernel_feature_map: x is not scaled by d^(−1/4)"""

import numpy as np


def softmax_kernel_feature_map(x, projection_matrix):
    m = len(projection_matrix)
    return np.exp(x @ projection_matrix.T - np.sum(x**2, axis=-1, keepdims=True) / 2) / np.sqrt(m)
