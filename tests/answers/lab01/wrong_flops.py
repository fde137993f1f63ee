"""softmax_multiply_adds: you counted floating-point operations"""


def softmax_multiply_adds(n, D, M, causal=False):
    pairs = n * (n + 1) // 2 if causal else n * n
    return 2 * pairs * D + 2 * pairs * M
