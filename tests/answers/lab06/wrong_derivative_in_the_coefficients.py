"""rkhs_descent: your steps use the derivative with respect to α, which is K times the gradient"""

import numpy as np


def rkhs_descent(K, y, penalty, rate, steps):
    alpha = np.zeros(len(y))
    for _ in range(steps):
        alpha -= rate * (2 / len(y) * K @ (K @ alpha - y) + 2 * penalty * K @ alpha)
    return alpha
