"""quadratic_map: this is the Gram matrix of (q·k + 1)², not features"""


def quadratic_map(x):
    return (x @ x.T + 1) ** 2
