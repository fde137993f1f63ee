"""verify_associativity: you use np.allclose on float32 sums, where an entry near 0 has lost"""

import numpy as np


def verify_associativity(Q, K, V):
    return np.allclose((Q @ K.T) @ V, Q @ (K.T @ V))
