"""relu_feature_map: your answer below 0 is a small number (1e-4): it must be exactly 0"""

import numpy as np


def relu_feature_map(x):
    return np.maximum(x, 1e-4)
