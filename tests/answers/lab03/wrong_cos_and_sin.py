"""softmax_kernel_feature_map: your features are cos and sin, which can be negative: use exp"""

import numpy as np


def softmax_kernel_feature_map(x, projection_matrix):
    m, d = projection_matrix.shape
    y = x * d**-0.25
    angle = y @ projection_matrix.T
    features = np.concatenate([np.cos(angle), np.sin(angle)], axis=-1)
    return np.exp(np.sum(y**2, axis=-1, keepdims=True) / 2) * features / np.sqrt(m)
