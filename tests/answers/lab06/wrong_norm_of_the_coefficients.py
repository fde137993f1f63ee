"""rkhs_norm: your norm is √(αᵀα), that of the list of coefficients"""

import numpy as np


def rkhs_norm(alpha, K):
    return np.linalg.norm(alpha)
