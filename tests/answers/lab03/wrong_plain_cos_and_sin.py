"""softmax_kernel_feature_map: your features are cos and sin, which can be negative: use exp"""

import numpy as np


def softmax_kernel_feature_map(x, projection_matrix):
    angle = x @ projection_matrix.T
    m = projection_matrix.shape[0]
    return np.concatenate([np.cos(angle), np.sin(angle)], axis=-1) / np.sqrt(m)
