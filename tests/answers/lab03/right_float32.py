"""Everything rounded to float32 on the way."""

import numpy as np

narrow = np.float32


def compute_implicit_attention(Q, K, feature_map):
    weights = narrow(feature_map(Q)) @ narrow(feature_map(K)).T
    total = weights.sum(axis=1, keepdims=True)
    if np.any(total == 0):
        raise ZeroDivisionError("a row without weight")
    return weights / total


def softmax_weights(Q, K, scale):
    scale = 1 / np.sqrt(Q.shape[1]) if scale is None else scale
    scores = narrow(scale) * (narrow(Q) @ narrow(K).T)
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
    B = narrow(feature_map(Q)) @ narrow(feature_map(K)).T
    ours, theirs = A @ narrow(V), S @ narrow(V)
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    return {
        **compare_to_softmax(Q, K, feature_map),
        "output_relative_error": np.linalg.norm(ours - theirs) / np.linalg.norm(theirs),
        "output_cosine": np.mean(np.sum(ours * theirs, axis=1) / norms),
        "smallest_normalizer": np.min(np.abs(B.sum(axis=1))),
        "condition_number": np.max(np.abs(B).sum(axis=1) / np.abs(B.sum(axis=1))),
        "negative_fraction": np.mean(A < 0),
    }


def show_attention(A):
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots()
    axes.imshow(A)
    figure.canvas.draw()
    plt.close(figure)
