"""verify_associativity: you compare bit by bit: the two orders round differently, so allow"""

import numpy as np


def verify_associativity(Q, K, V):
    return np.array_equal((Q @ K.T) @ V, Q @ (K.T @ V))
