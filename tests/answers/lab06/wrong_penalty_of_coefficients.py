"""ridge_dual: your α use the penalty λαᵀα, (K² + nλI)⁻¹Ky: ‖f‖² is αᵀKα"""

import numpy as np


def ridge_dual(K, y, penalty):
    n = len(y)
    return np.linalg.solve(K.T @ K + n * penalty * np.eye(n), K.T @ y)
