"""rkhs_descent: your gradient has the sum of the squares, not their mean"""

import numpy as np


def rkhs_descent(K, y, penalty, rate, steps):
    alpha = np.zeros(len(y))
    for _ in range(steps):
        alpha -= rate * (2 * (K @ alpha - y) + 2 * penalty * alpha)
    return alpha
