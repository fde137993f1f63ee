"""square_map: m = d² = 9: the cross terms are there twice"""


def square_map(x):
    return (x[:, :, None] * x[:, None, :]).reshape(len(x), -1)
