"""crossover: your length is D²/2: that is a rule of thumb for M = D, not the exact count"""


def crossover(D, M):
    return D * D // 2
