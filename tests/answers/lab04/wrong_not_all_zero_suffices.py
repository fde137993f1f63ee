"""similarity_conditions: finite_output asks only that no row is all zero"""

import numpy as np


def similarity_conditions(S):
    symmetric = np.allclose(S, S.T)
    eigenvalues = np.linalg.eigvalsh(S)
    return {
        "finite_output": not np.any(np.all(S == 0, axis=1)),
        "non_negative": bool(S.min() >= 0),
        "symmetric": symmetric,
        "positive_semidefinite": bool(
            symmetric and eigenvalues[0] >= -1e-9 * abs(eigenvalues).max()
        ),
    }
