"""linear_multiply_adds: you halved the count for causal=True"""


def linear_multiply_adds(n, m, M, causal=False):
    count = 2 * n * m * (M + 1)
    return count // 2 if causal else count
