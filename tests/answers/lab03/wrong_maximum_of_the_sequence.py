"""softmax_kernel_feature_map: the largest exponent of the whole sequence is subtracted"""

import numpy as np


def softmax_kernel_feature_map(x, projection_matrix):
    m, d = projection_matrix.shape
    y = x * d**-0.25
    exponent = y @ projection_matrix.T - np.sum(y**2, axis=-1, keepdims=True) / 2
    exponent = exponent - exponent.max(axis=(-1, -2), keepdims=True)  # against overflow
    return np.exp(exponent) / np.sqrt(m)
