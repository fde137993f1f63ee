"""square_map: your map gives ½[(q·k)²+Σq²k²]: the cross terms lack √2"""

import numpy as np


def square_map(x):
    i, j = np.triu_indices(x.shape[1])
    return x[:, i] * x[:, j]
