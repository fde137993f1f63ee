"""softmax_multiply_adds: that of n²/2 pairs: a token sees itself too"""


def softmax_multiply_adds(n, D, M, causal=False):
    count = n**2 * (D + M)
    return count / 2 if causal else count
