"""Token by token."""

import numpy as np


def simple_feature_map(x):
    return x.copy()


def elu_feature_map(x):
    flat = [v + 1 if v > 0 else np.exp(v) for v in x.ravel()]
    return np.array(flat, dtype=x.dtype).reshape(x.shape)


def standard_attention_order(Q, K, V):
    weights = np.zeros((len(Q), len(K)))
    output = np.zeros((len(Q), V.shape[1]))
    for i in range(len(Q)):
        for j in range(len(K)):
            weights[i, j] = np.dot(Q[i], K[j])
            output[i] += weights[i, j] * V[j]
    return output, weights


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    phi_Q, phi_K = feature_map(Q), feature_map(K)
    U, Z = 0, 0
    for k, v in zip(phi_K, V, strict=True):
        U, Z = U + np.outer(k, v), Z + k
    return np.array([q @ U / (q @ Z if normalize else 1) for q in phi_Q])


def verify_associativity(Q, K, V):
    a, _ = standard_attention_order(Q, K, V)
    b = linear_attention_order(Q, K, V, lambda x: x)
    return bool(np.max(np.abs(a - b)) <= 1e-5 * np.max(np.abs(b)))
