"""causal_attention_by_features: your output matches a causal U with the Z of all keys"""

import numpy as np


def causal_attention_by_features(Q, K, V):
    phi_Q, phi_K = quadratic_map(Q), quadratic_map(K)
    U, Z = np.zeros((phi_K.shape[1], V.shape[1])), phi_K.sum(axis=0)
    output = []
    for i in range(len(Q)):
        U += np.outer(phi_K[i], V[i])
        output.append(phi_Q[i] @ U / (phi_Q[i] @ Z))
    return np.array(output)
