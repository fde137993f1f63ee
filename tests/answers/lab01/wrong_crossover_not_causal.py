"""crossover_length: your n does not depend on causal"""


def crossover_length(D, m, M, causal=False):
    return 2 * m * (M + 1) // (D + M) + 1
