"""compare_to_softmax: 'max_diff' is the largest S − A"""

import numpy as np


def compare_to_softmax(Q, K, feature_map, scale=None):
    A, S = compute_implicit_attention(Q, K, feature_map), softmax_weights(Q, K, scale)
    return {
        "mse": np.mean((A - S) ** 2),
        "max_diff": np.max(S - A),
        "correlation": np.corrcoef(A.ravel(), S.ravel())[0, 1],
    }
