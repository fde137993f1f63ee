"""crossover: your length has m = D²"""


def crossover(D, M):
    return 2 * D**2 * M // (D + M) + 1
