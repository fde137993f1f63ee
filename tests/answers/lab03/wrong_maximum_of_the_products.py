"""softmax_kernel_feature_map: the largest exponent of the whole sequence is subtracted"""

import numpy as np


def softmax_kernel_feature_map(x, projection_matrix):
    m, d = projection_matrix.shape
    y = x * d**-0.25
    products = y @ projection_matrix.T
    norms = np.sum(y**2, axis=-1, keepdims=True) / 2
    return np.exp(products - norms - products.max()) / np.sqrt(m)
