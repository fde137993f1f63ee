"""compare_to_softmax: 'correlation' uses only the first two rows"""

import numpy as np


def compare_to_softmax(Q, K, feature_map, scale=None):
    A, S = compute_implicit_attention(Q, K, feature_map), softmax_weights(Q, K, scale)
    return {
        "mse": np.mean((A - S) ** 2),
        "max_diff": np.max(np.abs(A - S)),
        "correlation": np.corrcoef(A, S)[0, 1],
    }
