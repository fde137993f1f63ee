"""crossover_length: your n is not rounded"""


def crossover_length(D, m, M, causal=False):
    quotient = 2 * m * (M + 1) / (D + M)
    return 2 * quotient - 1 if causal else quotient
