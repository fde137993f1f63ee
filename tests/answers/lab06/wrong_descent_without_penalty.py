"""rkhs_descent: your steps leave out the penalty: the gradient contains 2λf, so the step"""

import numpy as np


def rkhs_descent(K, y, penalty, rate, steps):
    alpha = np.zeros(len(y))
    for _ in range(steps):
        alpha -= rate * 2 / len(y) * (K @ alpha - y)
    return alpha
