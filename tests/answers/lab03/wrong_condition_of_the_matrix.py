"""analyze_feature_map_quality: 'condition_number' is np.linalg.cond of the matrix: here it"""

import numpy as np


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
        "condition_number": np.linalg.cond(A),
        "negative_fraction": np.mean(A < 0),
    }
