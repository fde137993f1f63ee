"""elu_feature_map: you compute ELU as (eˣ − 1) + 1, which is 0 below −17.3 in float32:"""

import numpy as np


def elu_feature_map(x):
    elu = np.where(x > 0, x, np.exp(np.minimum(x, 0)) - 1)
    return elu + 1
