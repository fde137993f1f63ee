"""softmax_kernel_feature_map: ‖x‖² is computed before scaling: use x′ in both terms"""

import numpy as np


def softmax_kernel_feature_map(x, projection_matrix):
    m, d = projection_matrix.shape
    y = x * d**-0.25
    return np.exp(y @ projection_matrix.T - np.sum(x**2, axis=-1, keepdims=True) / 2) / np.sqrt(m)
