"""softmax_multiply_adds: the diagonal is missing"""


def softmax_multiply_adds(n, D, M, causal=False):
    pairs = sum(range(n)) if causal else n * n
    return pairs * (D + M)
