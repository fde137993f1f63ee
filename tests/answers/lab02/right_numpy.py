"""With @ and float64 sums."""

import numpy as np


def simple_feature_map(x):
    return x


def elu_feature_map(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def standard_attention_order(Q, K, V):
    weights = Q.astype(np.float64) @ K.T.astype(np.float64)
    return (weights @ V).astype(Q.dtype), weights.astype(Q.dtype)


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    phi_Q, phi_K = feature_map(Q.astype(np.float64)), feature_map(K.astype(np.float64))
    output = phi_Q @ (phi_K.T @ V)
    if normalize:
        output = output / (phi_Q @ phi_K.sum(axis=0))[:, None]
    return output.astype(Q.dtype)


def verify_associativity(Q, K, V):
    Q, K, V = (x.astype(np.float64) for x in (Q, K, V))
    left, right = (Q @ K.T) @ V, Q @ (K.T @ V)
    return np.allclose(left, right, rtol=0, atol=1e-5 * np.max(np.abs(right)))
