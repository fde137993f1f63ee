"""quadratic_map: m = d² + d + 1 = 13: the cross terms are there twice"""

import numpy as np


def quadratic_map(x):
    pairs = np.einsum("ni,nj->nij", x, x).reshape(len(x), -1)
    return np.hstack([np.ones((len(x), 1)), np.sqrt(2) * x, pairs])
