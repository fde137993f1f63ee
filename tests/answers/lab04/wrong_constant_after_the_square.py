"""quadratic_kernel: your matrix is (q·k)² + c: add the constant before squaring"""


def quadratic_kernel(Q, K, constant=1.0):
    return (Q @ K.T) ** 2 + constant
