"""softmax_kernel_feature_map: cos and sin features"""

import numpy as np


def softmax_kernel_feature_map(x, projection_matrix):
    angle = x @ projection_matrix.T
    m = projection_matrix.shape[0]
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=-1) / np.sqrt(m)
