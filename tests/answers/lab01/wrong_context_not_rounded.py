"""longest_context: your n is not rounded"""

import numpy as np


def longest_context(budget, heads=1, dtype="float32"):
    return np.sqrt(budget / (heads * np.dtype(dtype).itemsize))
