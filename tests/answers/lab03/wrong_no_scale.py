"""compare_to_softmax: the softmax has no scale"""

import numpy as np


def compare_to_softmax(Q, K, feature_map, scale=None):
    A, S = (
        compute_implicit_attention(Q, K, feature_map),
        softmax_weights(Q, K, 1 if scale is None else scale),
    )
    return {
        "mse": np.mean((A - S) ** 2),
        "max_diff": np.max(np.abs(A - S)),
        "correlation": np.corrcoef(A.ravel(), S.ravel())[0, 1],
    }
