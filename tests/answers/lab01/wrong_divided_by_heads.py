"""longest_context: h heads share the budget, so n shrinks by √h"""

import numpy as np


def longest_context(budget, heads=1, dtype="float32"):
    n = int(np.sqrt(budget // np.dtype(dtype).itemsize))
    return n // heads
