"""linear_multiply_adds: with causal=True you rebuild U and Z for each token from all"""


def linear_multiply_adds(n, m, M, causal=False):
    if not causal:
        return 2 * n * m * (M + 1)
    total = 0
    for i in range(1, n + 1):
        total += i * m * (M + 1)  # U and Z of the first i tokens
        total += m * (M + 1)
    return total
