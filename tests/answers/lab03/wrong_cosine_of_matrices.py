"""analyze_feature_map_quality: 'output_cosine' is the cosine of the two whole matrices:"""

import numpy as np


def analyze_feature_map_quality(feature_map, Q, K, V):
    A, S = compute_implicit_attention(Q, K, feature_map), softmax_weights(Q, K, None)
    B = feature_map(Q) @ feature_map(K).T
    ours, theirs = A @ V, S @ V
    return {
        **compare_to_softmax(Q, K, feature_map),
        "output_relative_error": np.linalg.norm(ours - theirs) / np.linalg.norm(theirs),
        "output_cosine": np.sum(ours * theirs) / np.linalg.norm(ours) / np.linalg.norm(theirs),
        "smallest_normalizer": np.min(np.abs(B.sum(axis=1))),
        "condition_number": np.max(np.abs(B).sum(axis=1) / np.abs(B.sum(axis=1))),
        "negative_fraction": np.mean(A < 0),
    }
