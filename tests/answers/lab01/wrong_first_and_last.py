"""growth_exponent: your slope uses only the first and the last point: least squares uses"""

import math


def growth_exponent(lengths, costs):
    return math.log(costs[-1] / costs[0]) / math.log(lengths[-1] / lengths[0])
