"""negative_direction: this is the eigenvector of the largest eigenvalue"""

import numpy as np


def negative_direction(K):
    return np.linalg.eigh(K)[1][:, -1]
