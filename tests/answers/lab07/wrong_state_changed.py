"""recurrent_attention: changes its argument state in place"""

import numpy as np


def recurrent_attention(phi_q, phi_k, V, state=None):
    if state is None:
        state = np.zeros((phi_k.shape[1], V.shape[1])), np.zeros(phi_k.shape[1])
    U, Z = state
    output = np.zeros(V.shape)
    for i in range(len(V)):
        U += np.outer(phi_k[i], V[i])
        Z += phi_k[i]
        output[i] = phi_q[i] @ U / (phi_q[i] @ Z)
    return output, (U, Z)
