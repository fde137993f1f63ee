"""taylor_feature_map: it has only the squares xᵢ²; t² also needs the products"""

import numpy as np


def taylor_feature_map(x):
    y = x / x.shape[-1] ** 0.25
    return np.concatenate([np.ones_like(y[..., :1]), y, y**2 / np.sqrt(2)], axis=-1)
