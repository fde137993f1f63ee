"""ridge_dual: your α match K⁻¹y: the penalty is missing"""

import numpy as np


def ridge_dual(K, y, penalty):
    return np.linalg.inv(K) @ y
