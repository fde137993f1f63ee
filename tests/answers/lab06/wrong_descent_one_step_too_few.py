"""rkhs_descent: you made one step too few"""

import numpy as np


def rkhs_descent(K, y, penalty, rate, steps):
    alpha = np.zeros(len(y))
    for _ in range(1, steps):
        alpha = alpha - rate * (2 / len(y) * (K @ alpha - y) + 2 * penalty * alpha)
    return alpha
