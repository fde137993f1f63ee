"""quadratic_map: your map gives (q·k)² + 2q·k: the constant 1 is missing"""

import numpy as np


def quadratic_map(x):
    return np.concatenate([np.sqrt(2) * x, square_map(x)], axis=1)
