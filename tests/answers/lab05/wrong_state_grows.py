"""kept_bytes: your state grows with n"""

import numpy as np


def kept_bytes(b, n, g, k, v, m=None, dtype="float32"):
    per_token = k + v if m is None else m * (v + 1)
    return b * n * g * per_token * np.dtype(dtype).itemsize
