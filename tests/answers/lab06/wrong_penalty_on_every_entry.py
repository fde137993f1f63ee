"""ridge_dual: your α match nλ added to every entry of K"""

import numpy as np


def ridge_dual(K, y, penalty):
    return np.linalg.solve(K + len(y) * penalty, y)
