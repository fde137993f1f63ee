"""quadratic_map: your map gives (q·k)² + q·k + 1: the linear terms lack √2"""

import numpy as np


def quadratic_map(x):
    return np.concatenate([np.ones((len(x), 1)), x, square_map(x)], axis=1)
