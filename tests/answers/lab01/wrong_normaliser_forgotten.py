"""linear_multiply_adds: your count leaves out the normaliser"""


def linear_multiply_adds(n, m, M, causal=False):
    make_U = n * m * M
    read_U = n * m * M
    return make_U + read_U
