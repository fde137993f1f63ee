"""taylor_feature_map: your map is that of t = q·k/d: you divide x by √d"""

import numpy as np


def taylor_feature_map(x):
    y = x / np.sqrt(x.shape[-1])
    products = (y[..., :, None] * y[..., None, :]).reshape(*x.shape[:-1], -1)
    return np.concatenate([np.ones_like(y[..., :1]), y, products / np.sqrt(2)], axis=-1)
