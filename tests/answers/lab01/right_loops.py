"""Lab 01 by going through the tokens, and by trying lengths."""

import math

import numpy as np


def softmax_multiply_adds(n, D, M, causal=False):
    total = 0
    for i in range(n):
        keys = i + 1 if causal else n
        total += keys * D  # scores
        total += keys * M  # values
    return total


def linear_multiply_adds(n, m, M, causal=False):
    total = 0
    for _ in range(n):
        total += m * M + m  # into U and Z
        total += m * M + m  # out of U and Z
    return total


def weights_bytes(n, heads=1, dtype="float32"):
    return heads * n * np.zeros(n, dtype).nbytes


def state_bytes(m, M, heads=1, dtype="float32"):
    U, Z = np.zeros((heads, m, M), dtype), np.zeros((heads, m), dtype)
    return U.nbytes + Z.nbytes


def crossover_length(D, m, M, causal=False):
    pairs = (lambda n: n * (n + 1) / 2) if causal else (lambda n: n * n)
    low, high = 0, 10**7  # not cheaper at low, cheaper at high
    while high - low > 1:
        n = (low + high) // 2
        if 2 * n * m * (M + 1) < pairs(n) * (D + M):
            high = n
        else:
            low = n
    return high


def growth_exponent(lengths, costs):
    x = [math.log2(n) for n in lengths]
    y = [math.log2(cost) for cost in costs]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return above / sum((a - mean_x) ** 2 for a in x)


def longest_context(budget, heads=1, dtype="float32"):
    n = int(np.sqrt(budget / heads / np.dtype(dtype).itemsize)) + 2
    while weights_bytes(n, heads, dtype) > budget:
        n -= 1
    return n
