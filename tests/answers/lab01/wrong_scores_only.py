"""softmax_multiply_adds: your count is that of QKᵀ alone"""


def softmax_multiply_adds(n, D, M, causal=False):
    pairs = n * (n + 1) // 2 if causal else n**2
    return pairs * D
