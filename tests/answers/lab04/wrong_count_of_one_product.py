"""quadratic_multiply_adds: you counted only one of the two products"""


def quadratic_multiply_adds(n, D, M):
    return n * (D + 1) * (D + 2) // 2 * M
