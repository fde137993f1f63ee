"""crossover: your length is rounded up, which is one too few if the counts are equal at a"""

import math


def crossover(D, M):
    return math.ceil((D + 1) * (D + 2) * M / (D + M))
