"""growth_exponent: the lengths belong on the x axis"""

import numpy as np


def growth_exponent(lengths, costs):
    return np.polyfit(np.log(costs), np.log(lengths), 1)[0]
