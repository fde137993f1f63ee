"""linear_attention_order: your numbers are of float16, which has three digits"""

import numpy as np


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    q, k, v = np.float16(feature_map(Q)), np.float16(feature_map(K)), np.float16(V)
    output = q @ (k.T @ v)
    return (output / (q @ k.sum(axis=0))[:, None] if normalize else output).astype(V.dtype)
