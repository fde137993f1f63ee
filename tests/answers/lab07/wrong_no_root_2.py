"""taylor_feature_map: the cross terms lack √2"""

import numpy as np


def taylor_feature_map(x):
    d = x.shape[-1]
    y = x / d**0.25
    i, j = np.triu_indices(d)
    products = y[..., i] * y[..., j] / np.sqrt(2)
    return np.concatenate([np.ones((*x.shape[:-1], 1)), y, products], axis=-1)
