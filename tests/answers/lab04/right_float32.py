"""Everything rounded to float32 on the way; the map by a rotation of another one."""

import numpy as np


def quadratic_kernel(Q, K, constant=1.0):
    return np.square(np.float32(Q) @ np.float32(K).T + np.float32(constant))


def square_map(x):
    x = np.float32(x)
    i, j = np.triu_indices(x.shape[1])
    return np.where(i == j, np.float32(1), np.sqrt(np.float32(2))) * x[:, i] * x[:, j]


def quadratic_map(x):
    features = square_map(np.column_stack([np.ones(len(x)), x]))
    rotation, _ = np.linalg.qr(np.random.default_rng(0).standard_normal((features.shape[1],) * 2))
    return features @ np.float32(rotation)


def attention_by_kernel(Q, K, V):
    S = quadratic_kernel(Q, K)
    total = np.sum(S, axis=1, keepdims=True)
    if np.min(total) == 0:
        raise ZeroDivisionError("no weight")
    return (S / total) @ np.float32(V)


def quadratic_multiply_adds(n, D, M):
    return float(n * (D * D + 3 * D + 2) * M)


def crossover(D, M):
    return int(np.floor((D + 1) * (D + 2) * M / (D + M))) + 1
