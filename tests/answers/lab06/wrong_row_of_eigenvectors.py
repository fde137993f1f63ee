"""negative_direction: this is a row of the matrix of eigenvectors"""

import numpy as np


def negative_direction(K):
    _, vectors = np.linalg.eigh(K)
    return vectors[0]
