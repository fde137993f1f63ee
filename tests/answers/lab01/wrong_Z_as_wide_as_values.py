"""state_bytes: you gave Z the width of the values"""

import numpy as np


def state_bytes(m, M, heads=1, dtype="float32"):
    return heads * (m * M + M) * np.dtype(dtype).itemsize
