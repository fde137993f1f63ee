"""softmax_multiply_adds: with causal=True you counted n²/2 pairs: a token also sees itself,"""


def softmax_multiply_adds(n, D, M, causal=False):
    count = n**2 * (D + M)
    return count / 2 if causal else count
