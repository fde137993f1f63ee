"""quadratic_multiply_adds: you counted nested loops, n²·m·M: U is computed once, not for"""


def quadratic_multiply_adds(n, D, M):
    return n**2 * ((D + 1) * (D + 2) // 2) * M
