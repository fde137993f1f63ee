"""state_size: you counted only U: the state also holds Z, another m numbers"""


def state_size(d, value_width, compact=True):
    m = (d + 1) * (d + 2) // 2 if compact else 1 + d + d**2
    return m * value_width
