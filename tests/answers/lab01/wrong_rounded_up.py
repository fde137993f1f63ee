"""longest_context: its weights take more than the budget"""

import numpy as np


def longest_context(budget, heads=1, dtype="float32"):
    n = 0
    while heads * n * n * np.dtype(dtype).itemsize < budget:
        n += 1
    return n
