"""elu_feature_map: your output matches ELU without the + 1"""

import numpy as np


def elu_feature_map(x):
    return np.where(x > 0, x, np.exp(x) - 1)
