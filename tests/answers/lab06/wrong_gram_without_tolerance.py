"""is_gram_matrix: eigenvalues are compared with 0 without a tolerance"""

import numpy as np


def is_gram_matrix(K):
    if not np.allclose(K, K.T):
        return False
    return bool(np.all(np.linalg.eigvalsh(K) >= 0))
