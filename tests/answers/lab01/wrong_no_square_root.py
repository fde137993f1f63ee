"""longest_context: your n is the number of numbers that fit: there are n² of them, so take"""

import numpy as np


def longest_context(budget, heads=1, dtype="float32"):
    return budget // (heads * np.dtype(dtype).itemsize)
