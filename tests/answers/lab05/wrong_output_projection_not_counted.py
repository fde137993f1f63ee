"""decoding_multiply_adds: your count leaves out the output projection"""


def decoding_multiply_adds(b, n, d, h, g):
    k = d // h
    return b * (d * h * k + 2 * d * g * k + 2 * n * h * k)
