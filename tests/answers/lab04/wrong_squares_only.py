"""square_map: your map gives Σq²k²: the cross terms are missing"""


def square_map(x):
    return x**2
