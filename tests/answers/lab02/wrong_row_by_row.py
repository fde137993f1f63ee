"""linear_attention_order: the time grows as n²: 16 times the length takes more than 80 times
the operations. Take φ(K)ᵀV first"""

import numpy as np


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    phi_q, phi_k = np.array(feature_map(Q)), np.array(feature_map(K))
    rows = []
    for query in phi_q:
        weights = phi_k @ query
        rows.append(weights @ V / (weights.sum() if normalize else 1))
    return np.array(rows)
