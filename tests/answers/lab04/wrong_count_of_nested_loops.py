"""quadratic_multiply_adds: your count is that of nested loops, n²·m·M"""


def quadratic_multiply_adds(n, D, M):
    return n**2 * ((D + 1) * (D + 2) // 2) * M
