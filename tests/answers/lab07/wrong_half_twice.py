"""taylor_feature_map: your map gives 1 + t + t²/4: φ(q) and φ(k) both have the ½, so use"""

import numpy as np


def taylor_feature_map(x):
    y = x / x.shape[-1] ** 0.25
    products = (y[..., :, None] * y[..., None, :]).reshape(*x.shape[:-1], -1)
    return np.concatenate([np.ones_like(y[..., :1]), y, products / 2], axis=-1)
