"""longest_context: your n is one too small if the budget is filled exactly: that still fits"""

import numpy as np


def longest_context(budget, heads=1, dtype="float32"):
    n = 0
    while heads * (n + 1) ** 2 * np.dtype(dtype).itemsize < budget:
        n += 1
    return n
