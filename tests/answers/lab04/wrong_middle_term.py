"""quadratic_kernel: the middle term of the square is 2c·q·k"""


def quadratic_kernel(Q, K, constant=1.0):
    t = Q @ K.T
    return constant**2 + constant * t + t**2
