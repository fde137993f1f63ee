"""Every exercise of lab 01 from its formula."""

import math

import numpy as np


def softmax_multiply_adds(n, D, M, causal=False):
    pairs = n * (n + 1) // 2 if causal else n**2
    return pairs * (D + M)


def linear_multiply_adds(n, m, M, causal=False):
    return 2 * n * m * M + 2 * n * m


def weights_bytes(n, heads=1, dtype="float32"):
    return heads * n**2 * np.dtype(dtype).itemsize


def state_bytes(m, M, heads=1, dtype="float32"):
    return heads * (m * M + m) * np.dtype(dtype).itemsize


def crossover_length(D, m, M, causal=False):
    n = 1
    while linear_multiply_adds(n, m, M) >= softmax_multiply_adds(n, D, M, causal):
        n += 1
    return n


def growth_exponent(lengths, costs):
    slope, _ = np.polyfit(np.log(lengths), np.log(costs), 1)
    return slope


def longest_context(budget, heads=1, dtype="float32"):
    return math.isqrt(budget // (heads * np.dtype(dtype).itemsize))
