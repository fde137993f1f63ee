"""softmax_kernel_feature_map: the factor 1/√m is missing"""

import numpy as np


def softmax_kernel_feature_map(x, projection_matrix):
    d = projection_matrix.shape[1]
    y = x * d**-0.25
    return np.exp(y @ projection_matrix.T - np.sum(y**2, axis=-1, keepdims=True) / 2)
