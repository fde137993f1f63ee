"""elu_plus_one: you compute ELU as (eˣ − 1) + 1, which is 0 below −17.3 in float32: write"""

import numpy as np


def elu_plus_one(x):
    return 1 + np.where(x > 0, x, np.expm1(np.minimum(x, 0)))
