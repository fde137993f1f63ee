"""exp_feature_map: x is clipped to [−20, 20]"""

import numpy as np


def exp_feature_map(x):
    return np.exp(np.clip(x, -20, 20))
