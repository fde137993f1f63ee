"""is_gram_matrix: the determinant is tested"""

import numpy as np


def is_gram_matrix(K):
    K = K / np.abs(K).max()
    return bool(np.allclose(K, K.T) and np.linalg.det(K) >= -1e-10)
