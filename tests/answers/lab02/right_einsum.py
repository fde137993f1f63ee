"""With einsum, in float32."""

import numpy as np


def simple_feature_map(x):
    return np.asarray(x)


def elu_feature_map(x):
    return np.where(x > 0, x + 1, np.exp(x))


def standard_attention_order(Q, K, V):
    Q, K, V = (np.float32(x) for x in (Q, K, V))
    weights = np.einsum("id,jd->ij", Q, K)
    return [np.einsum("ij,jv->iv", weights, V), weights]


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    q, k, v = np.float32(feature_map(Q)), np.float32(feature_map(K)), np.float32(V)
    output = np.einsum("im,mv->iv", q, np.einsum("jm,jv->mv", k, v))
    return output / np.einsum("im,m->i", q, k.sum(axis=0))[:, None] if normalize else output


def verify_associativity(Q, K, V):
    left, right = (Q @ K.T) @ V, Q @ (K.T @ V)
    return np.all(np.abs(left - right) <= 1e-5 * np.linalg.norm(right))
