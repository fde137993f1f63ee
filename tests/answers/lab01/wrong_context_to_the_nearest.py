"""longest_context: your n is rounded to the nearest whole number"""

import numpy as np


def longest_context(budget, heads=1, dtype="float32"):
    return round((budget / (heads * np.dtype(dtype).itemsize)) ** 0.5)
