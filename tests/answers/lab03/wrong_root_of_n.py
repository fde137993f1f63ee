"""compare_to_softmax: the scores are divided by √n"""

import numpy as np


def compare_to_softmax(Q, K, feature_map, scale=None):
    scale = 1 / np.sqrt(len(Q)) if scale is None else scale
    A, S = compute_implicit_attention(Q, K, feature_map), softmax_weights(Q, K, scale)
    return {
        "mse": np.mean((A - S) ** 2),
        "max_diff": np.max(np.abs(A - S)),
        "correlation": np.corrcoef(A.ravel(), S.ravel())[0, 1],
    }
