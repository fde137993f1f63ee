"""square_map: your map gives 2(q·k)² − Σq²k²: the cross terms carry a factor 2"""

import numpy as np


def square_map(x):
    i, j = np.triu_indices(x.shape[1], 1)
    return np.concatenate([x**2, 2 * x[:, i] * x[:, j]], axis=1)
