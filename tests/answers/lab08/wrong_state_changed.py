"""delta_rule: changes its argument state in place"""

import numpy as np


def delta_rule(Q, K, V, beta, state=None):
    S = np.zeros((K.shape[1], V.shape[1])) if state is None else state
    output = []
    for q, k, v, b in zip(Q, K, V, beta, strict=True):
        S += b * np.outer(k, v - k @ S)
        output.append(q @ S)
    return np.array(output), S
