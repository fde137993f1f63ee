"""longest_context: one too small where the budget is filled exactly"""

import numpy as np


def longest_context(budget, heads=1, dtype="float32"):
    n = 0
    while heads * (n + 1) ** 2 * np.dtype(dtype).itemsize < budget:
        n += 1
    return n
