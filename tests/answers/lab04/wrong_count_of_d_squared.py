"""quadratic_multiply_adds: your count has m = D²"""


def quadratic_multiply_adds(n, D, M):
    return 2 * n * D**2 * M
