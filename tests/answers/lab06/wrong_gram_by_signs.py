"""is_gram_matrix: the signs of the entries are tested"""

import numpy as np


def is_gram_matrix(K):
    return bool(np.allclose(K, K.T) and (K >= 0).all())
