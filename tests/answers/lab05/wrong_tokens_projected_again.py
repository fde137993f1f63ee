"""decoding_multiply_adds: you project all n tokens again"""


def decoding_multiply_adds(b, n, d, h, g):
    k = d // h
    projections = 2 * d * d + 2 * d * g * k
    return b * (n * projections + 2 * n * d)
