"""growth_exponent: the line from the first point to the last"""

import math


def growth_exponent(lengths, costs):
    return math.log(costs[-1] / costs[0]) / math.log(lengths[-1] / lengths[0])
