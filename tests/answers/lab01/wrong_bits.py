"""weights_bytes: your answer is in bits"""

import numpy as np


def weights_bytes(n, heads=1, dtype="float32"):
    return heads * n * n * np.finfo(dtype).bits
