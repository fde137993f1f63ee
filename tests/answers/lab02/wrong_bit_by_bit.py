"""verify_associativity: compared bit by bit"""

import numpy as np


def verify_associativity(Q, K, V):
    return np.array_equal((Q @ K.T) @ V, Q @ (K.T @ V))
