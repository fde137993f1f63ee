"""dot_product_moments: your variance grows as d²"""

import math


def dot_product_moments(d, mean_q, std_q, mean_k, std_k):
    one = (std_q**2 + mean_q**2) * (std_k**2 + mean_k**2) - (mean_q * mean_k) ** 2
    variance = d**2 * one
    return d * mean_q * mean_k, variance, 1 / math.sqrt(variance)
