"""elu_feature_map: ELU computed as (eˣ − 1) + 1"""

import numpy as np


def elu_feature_map(x):
    elu = np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1)
    return elu + 1
