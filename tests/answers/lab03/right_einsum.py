"""With einsum and np.where."""

import numpy as np


def elu_plus_one(x):
    return np.where(x > 0, x + 1, np.exp(np.where(x > 0, 0, x)))


def relu_feature_map(x):
    return np.where(x > 0, x, 0)


def squared_relu_feature_map(x):
    return np.where(x > 0, x * x, 0)


def softmax_kernel_feature_map(x, projection_matrix):
    m, d = projection_matrix.shape
    exponent = np.einsum("...d,md->...m", x, projection_matrix) / d**0.25
    exponent -= np.einsum("...d,...d->...", x, x)[..., None] / (2 * np.sqrt(d))
    return np.exp(exponent - np.log(m) / 2)


def compute_implicit_attention(Q, K, feature_map):
    weights = np.einsum("im,jm->ij", feature_map(Q), feature_map(K))
    total = np.einsum("ij->i", weights)
    if not np.all(total):
        raise ZeroDivisionError(f"rows {np.flatnonzero(total == 0)} have no weight")
    return np.einsum("ij,i->ij", weights, 1 / total)
