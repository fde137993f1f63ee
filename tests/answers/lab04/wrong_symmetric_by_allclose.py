"""similarity_conditions: symmetric has an absolute tolerance (np.allclose has atol=1e-8)"""

import numpy as np

_right_conditions = similarity_conditions


def similarity_conditions(S):
    symmetric = bool(np.allclose(S, S.T))
    values = np.linalg.eigvalsh((S + S.T) / 2)
    psd = symmetric and bool(values[0] >= -1e-9 * np.abs(values).max())
    return {**_right_conditions(S), "symmetric": symmetric, "positive_semidefinite": psd}
