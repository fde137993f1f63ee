"""state_size: your count has d² features: there are also a constant and d linear features,"""


def state_size(d, value_width, compact=True):
    return d * d * value_width + d * d
