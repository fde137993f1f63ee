"""is_gram_matrix: a singular Gram matrix is refused: eigenvalues 0 are allowed"""

import numpy as np


def is_gram_matrix(K):
    if not np.allclose(K, K.T):
        return False
    try:
        np.linalg.cholesky(K)
    except np.linalg.LinAlgError:
        return False
    return True
