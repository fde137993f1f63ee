"""simple_feature_map: your output matches ReLU(x)"""

import numpy as np


def simple_feature_map(x):
    return np.maximum(x, 0)
