"""squared_relu_feature_map: your answer below 0 is a small number (1e-6): it must be exactly 0"""

import numpy as np


def squared_relu_feature_map(x):
    return np.maximum(x, 0) ** 2 + 1e-6
