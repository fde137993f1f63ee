"""taylor_feature_map: your map uses t = q·k/d: φ(q) and φ(k) both divide x by √d. Divide by"""

import numpy as np


def taylor_feature_map(x):
    y = x / np.sqrt(x.shape[-1])
    products = (y[..., :, None] * y[..., None, :]).reshape(*x.shape[:-1], -1)
    return np.concatenate([np.ones_like(y[..., :1]), y, products / np.sqrt(2)], axis=-1)
