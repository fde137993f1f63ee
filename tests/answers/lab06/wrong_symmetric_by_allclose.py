"""is_gram_matrix: the symmetry has an absolute tolerance (np.allclose has atol=1e-8)"""

import numpy as np


def is_gram_matrix(K):
    values = np.linalg.eigvalsh((K + K.T) / 2)
    return np.allclose(K, K.T) and bool(values[0] >= -1e-9 * np.abs(values).max())
