"""quadratic_multiply_adds: your count has one of the two products"""


def quadratic_multiply_adds(n, D, M):
    return n * (D + 1) * (D + 2) // 2 * M
