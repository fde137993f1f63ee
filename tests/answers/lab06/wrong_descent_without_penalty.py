"""rkhs_descent: your steps leave the penalty out"""

import numpy as np


def rkhs_descent(K, y, penalty, rate, steps):
    alpha = np.zeros(len(y))
    for _ in range(steps):
        alpha -= rate * 2 / len(y) * (K @ alpha - y)
    return alpha
