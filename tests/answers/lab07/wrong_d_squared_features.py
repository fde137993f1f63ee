"""state_size: your count has d² features: a constant and d linear ones belong to them"""


def state_size(d, value_width, compact=True):
    return d * d * value_width + d * d
