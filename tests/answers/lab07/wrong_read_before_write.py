"""recurrent_attention: you read before you write: token i must see itself"""

import numpy as np


def recurrent_attention(phi_q, phi_k, V, state=None):
    U = np.zeros((phi_k.shape[1], V.shape[1])) if state is None else state[0].copy()
    Z = np.zeros(phi_k.shape[1]) if state is None else state[1].copy()
    output = np.zeros(V.shape)
    for i in range(len(V)):
        output[i] = phi_q[i] @ U / (phi_q[i] @ Z + 1e-9)
        U += np.outer(phi_k[i], V[i])
        Z += phi_k[i]
    return output, (U, Z)
