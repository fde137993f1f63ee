"""Whole arrays."""

import numpy as np


def elu_plus_one(x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def relu_feature_map(x):
    return np.maximum(x, 0)


def squared_relu_feature_map(x):
    return np.maximum(x, 0) ** 2


def exp_feature_map(x):
    return np.exp(x)


def softmax_kernel_feature_map(x, projection_matrix):
    m, d = projection_matrix.shape
    y = x * d**-0.25
    return np.exp(y @ projection_matrix.T - np.sum(y**2, axis=-1, keepdims=True) / 2) / np.sqrt(m)


def compute_implicit_attention(Q, K, feature_map):
    weights = feature_map(Q) @ feature_map(K).T
    total = weights.sum(axis=1, keepdims=True)
    if np.any(total == 0):
        raise ZeroDivisionError("a row without weight")
    return weights / total


def show_attention(A):
    shades = np.array(list("·░▒▓█"))
    steps = np.rint(4 * np.clip(A / A.max(), 0, 1)).astype(int)
    print("\n".join(map("".join, shades[steps])))


def softmax_weights(Q, K, scale):
    scale = 1 / np.sqrt(Q.shape[1]) if scale is None else scale
    scores = scale * (Q @ K.T)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


def compare_to_softmax(Q, K, feature_map, scale=None):
    A, S = compute_implicit_attention(Q, K, feature_map), softmax_weights(Q, K, scale)
    return {
        "mse": np.mean((A - S) ** 2),
        "max_diff": np.max(np.abs(A - S)),
        "correlation": np.corrcoef(A.ravel(), S.ravel())[0, 1],
    }


def analyze_feature_map_quality(feature_map, Q, K, V):
    A, S = compute_implicit_attention(Q, K, feature_map), softmax_weights(Q, K, None)
    B = feature_map(Q) @ feature_map(K).T
    ours, theirs = A @ V, S @ V
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return {
        **compare_to_softmax(Q, K, feature_map),
        "output_relative_error": np.linalg.norm(ours - theirs) / np.linalg.norm(theirs),
        "output_cosine": np.mean(np.sum(ours * theirs, axis=1) / norms),
        "smallest_normalizer": np.min(np.abs(B.sum(axis=1))),
        "condition_number": np.max(np.abs(B).sum(axis=1) / np.abs(B.sum(axis=1))),
        "negative_fraction": np.mean(A < 0),
    }
