"""state_bytes: your Z is as wide as the values: Z = Σφ(k) has m entries"""

import numpy as np


def state_bytes(m, M, heads=1, dtype="float32"):
    return heads * (m * M + M) * np.dtype(dtype).itemsize
