"""square_map: your map gives [(q·k)²+Σq²k²]: the squares carry √2, and should not"""

import numpy as np


def square_map(x):
    i, j = np.triu_indices(x.shape[1])
    return np.sqrt(2) * x[:, i] * x[:, j]
