"""kept_bytes: your cache has values as wide as the keys"""

import numpy as np


def kept_bytes(b, n, g, k, v, m=None, dtype="float32"):
    numbers = 2 * n * k if m is None else m * (v + 1)
    return b * g * numbers * np.dtype(dtype).itemsize
