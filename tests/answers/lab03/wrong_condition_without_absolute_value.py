"""analyze_feature_map_quality: 'condition_number' lacks the absolute value"""

import numpy as np

_right_quality = analyze_feature_map_quality


def analyze_feature_map_quality(feature_map, Q, K, V):
    B = feature_map(Q) @ feature_map(K).T
    condition = np.max(np.abs(B).sum(axis=1) / B.sum(axis=1))
    return {**_right_quality(feature_map, Q, K, V), "condition_number": condition}
