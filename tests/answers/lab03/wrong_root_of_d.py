"""softmax_kernel_feature_map: x is scaled by d^(−1/2): use d^(−1/4), because q and k both"""

import numpy as np


def softmax_kernel_feature_map(x, projection_matrix):
    m, d = projection_matrix.shape
    y = x / np.sqrt(d)
    return np.exp(y @ projection_matrix.T - np.sum(y**2, axis=-1, keepdims=True) / 2) / np.sqrt(m)
