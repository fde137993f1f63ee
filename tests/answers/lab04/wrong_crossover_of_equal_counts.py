"""crossover: your length is rounded up, which is one too few where the two counts are equal"""

import math


def crossover(D, M):
    return math.ceil((D + 1) * (D + 2) * M / (D + M))
