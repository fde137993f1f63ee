"""taylor_feature_map: your map gives 1 + t + (q·k)²/2: the linear features are scaled, but"""

import numpy as np


def taylor_feature_map(x):
    products = (x[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], -1)
    linear = x / x.shape[-1] ** 0.25
    return np.concatenate([np.ones_like(x[..., :1]), linear, products / np.sqrt(2)], axis=-1)
