"""dot_product_moments: your moments leave out the means"""

import numpy as np


def dot_product_moments(d, mean_q, std_q, mean_k, std_k):
    variance = d * std_q**2 * std_k**2
    return 0.0, variance, 1 / np.sqrt(variance)
