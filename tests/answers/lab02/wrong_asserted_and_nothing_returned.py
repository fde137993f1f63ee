"""verify_associativity: np.testing.assert_allclose raises AssertionError"""

import numpy as np


def verify_associativity(Q, K, V):
    np.testing.assert_allclose((Q @ K.T) @ V, Q @ (K.T @ V))
