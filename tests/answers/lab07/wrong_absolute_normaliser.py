"""recurrent_attention: you divide by |φ(qᵢ)·Z|"""

import numpy as np


def recurrent_attention(phi_q, phi_k, V, state=None):
    U = np.zeros((phi_k.shape[1], V.shape[1])) if state is None else state[0].copy()
    Z = np.zeros(phi_k.shape[1]) if state is None else state[1].copy()
    output = []
    for q, k, v in zip(phi_q, phi_k, V, strict=True):
        U, Z = U + np.outer(k, v), Z + k
        output.append(q @ U / abs(q @ Z))
    return np.array(output), (U, Z)
