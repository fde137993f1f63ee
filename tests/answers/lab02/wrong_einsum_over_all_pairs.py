"""linear_attention_order: the time grows as n²"""

import numpy as np


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    q, k = feature_map(Q), feature_map(K)
    output = np.einsum("im,mv->iv", q, np.einsum("jm,jv->mv", k, V))
    return output / np.einsum("im,jm->i", q, k)[:, None] if normalize else output
