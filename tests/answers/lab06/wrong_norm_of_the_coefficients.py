"""rkhs_norm: your norm is √(αᵀα), the length of the coefficient vector: ‖f‖² = αᵀKα"""

import numpy as np


def rkhs_norm(alpha, K):
    return np.linalg.norm(alpha)
