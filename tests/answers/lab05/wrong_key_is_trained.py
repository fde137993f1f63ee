"""hard_attention_gradients: you let a gradient through to the selected key"""

import numpy as np


def hard_attention_gradients(Q, K, V, grad):
    dK, dV = np.zeros_like(K), np.zeros_like(V)
    for q, g in zip(Q, grad, strict=True):
        best = np.argmax(K @ q)
        dV[best] += g
        dK[best] += (g @ V[best]) * q
    return np.zeros_like(Q), dK, dV
