"""verify_associativity: np.allclose of float32 sums"""

import numpy as np


def verify_associativity(Q, K, V):
    return np.allclose((Q @ K.T) @ V, Q @ (K.T @ V))
