"""longest_context: the square root is missing"""

import numpy as np


def longest_context(budget, heads=1, dtype="float32"):
    return budget // (heads * np.dtype(dtype).itemsize)
