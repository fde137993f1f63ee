"""linear_attention_order: you divide by |φ(qᵢ)·Z|: if the normaliser is negative, the"""

import numpy as np


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    phi_Q, phi_K = feature_map(Q), feature_map(K)
    output = phi_Q @ (phi_K.T @ V)
    if normalize:
        output = output / np.abs(phi_Q @ phi_K.sum(axis=0))[:, None]
    return output
