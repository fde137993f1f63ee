"""crossover_length: at the quotient, rounded down, linear attention is not cheaper yet"""


def crossover_length(D, m, M, causal=False):
    quotient = 2 * m * (M + 1) / (D + M)
    return int(2 * quotient - 1) if causal else int(quotient)
