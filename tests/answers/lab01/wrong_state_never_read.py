"""linear_multiply_adds: you counted one of two passes"""


def linear_multiply_adds(n, m, M, causal=False):
    return n * (m * M + m)
