"""elu_feature_map: your output matches softplus, log(1 + eˣ), which overflows"""

import numpy as np


def elu_feature_map(x):
    return np.log(1 + np.exp(x))
