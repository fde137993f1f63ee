"""linear_multiply_adds: you build U and Z anew for each token"""


def linear_multiply_adds(n, m, M, causal=False):
    if not causal:
        return 2 * n * m * (M + 1)
    total = 0
    for i in range(1, n + 1):
        total += i * m * (M + 1)  # U and Z of the first i tokens
        total += m * (M + 1)
    return total
