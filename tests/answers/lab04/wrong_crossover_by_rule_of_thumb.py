"""crossover: your length is D²/2: that is the rule of thumb"""


def crossover(D, M):
    return D * D // 2
