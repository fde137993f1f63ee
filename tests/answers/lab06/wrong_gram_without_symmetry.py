"""is_gram_matrix: the symmetry is not tested"""

import numpy as np


def is_gram_matrix(K):
    eigenvalues = np.linalg.eigvalsh(K)
    return bool(eigenvalues.min() >= -1e-9 * np.abs(eigenvalues).max())
