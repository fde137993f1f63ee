"""svm_dual: your β satisfy Σyᵢβᵢ = 0: that is the condition of a machine with an offset b."""

import numpy as np


def svm_dual(K, y, C):
    # Pairs of points at a time, so that Σyᵢβᵢ stays 0.
    beta = np.zeros(len(y))
    for _ in range(40):
        for i in range(len(y)):
            for j in range(i):
                f = K @ (y * beta)
                curvature = K[i, i] + K[j, j] - 2 * K[i, j]
                step = (y[i] - f[i] - y[j] + f[j]) / curvature
                ends = sorted([-y[i] * beta[i], y[i] * (C - beta[i])])
                ends_j = sorted([y[j] * beta[j], y[j] * (beta[j] - C)])
                step = np.clip(step, max(ends[0], ends_j[0]), min(ends[1], ends_j[1]))
                beta[i] += y[i] * step
                beta[j] -= y[j] * step
    return np.clip(beta, 0, C)
