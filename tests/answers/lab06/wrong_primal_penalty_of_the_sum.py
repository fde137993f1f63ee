"""ridge_primal: your w match λ on the diagonal of ΦᵀΦ"""

import numpy as np


def ridge_primal(Phi, y, penalty):
    return np.linalg.solve(Phi.T @ Phi + penalty * np.eye(Phi.shape[1]), Phi.T @ y)
