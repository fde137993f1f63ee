"""ridge_dual: your α match λ on the diagonal of K"""

import numpy as np


def ridge_dual(K, y, penalty):
    return np.linalg.solve(K + penalty * np.eye(len(K)), y)
