"""recurrent_attention: this forms an n×n array: peak memory grows as n²"""

import numpy as np


def recurrent_attention(phi_q, phi_k, V, state=None):
    weights = np.tril(phi_q @ phi_k.T)
    U, Z = phi_k.T @ V, phi_k.sum(axis=0)
    total, values = weights.sum(axis=1), weights @ V
    if state is not None:
        total, values = total + phi_q @ state[1], values + phi_q @ state[0]
        U, Z = U + state[0], Z + state[1]
    return values / total[:, None], (U, Z)
