"""similarity_conditions: positive_semidefinite asks for eigenvalues > 0"""

import numpy as np


def similarity_conditions(S):
    symmetric = np.allclose(S, S.T)
    definite = symmetric and np.linalg.eigvalsh(S).min() > 1e-10
    return {
        "finite_output": bool(np.all(np.abs(S.sum(1)) > 1e-9 * np.abs(S).sum(1))),
        "non_negative": bool(np.all(S >= 0)),
        "symmetric": symmetric,
        "positive_semidefinite": bool(definite),
    }
