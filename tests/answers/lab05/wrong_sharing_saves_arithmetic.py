"""decoding_multiply_adds: you counted the scores and sums of g heads"""


def decoding_multiply_adds(b, n, d, h, g):
    k = d // h
    return b * (2 * d * d + 2 * d * g * k + 2 * n * g * k)
