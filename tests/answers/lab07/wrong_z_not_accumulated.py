"""recurrent_attention: your Z is φ(k) of the current token only: Z is a sum over the"""

import numpy as np


def recurrent_attention(phi_q, phi_k, V, state=None):
    U = np.zeros((phi_k.shape[1], V.shape[1])) if state is None else state[0].copy()
    output = np.zeros(V.shape)
    for i in range(len(V)):
        U += np.outer(phi_k[i], V[i])
        Z = phi_k[i]
        output[i] = phi_q[i] @ U / (phi_q[i] @ Z)
    return output, (U, Z)
