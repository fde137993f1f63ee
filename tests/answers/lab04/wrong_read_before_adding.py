"""causal_attention_by_features: your output matches sums over j < i"""

import numpy as np


def causal_attention_by_features(Q, K, V):
    phi_Q, phi_K = quadratic_map(Q), quadratic_map(K)
    U, Z, output = np.zeros((phi_K.shape[1], V.shape[1])), np.zeros(phi_K.shape[1]), []
    for i in range(len(Q)):
        output.append(phi_Q[i] @ U / (phi_Q[i] @ Z))
        U += np.outer(phi_K[i], V[i])
        Z += phi_K[i]
    return np.array(output)
