"""softmax_multiply_adds: you counted only QKᵀ, n²·D: the weights times V take another n²·M"""


def softmax_multiply_adds(n, D, M, causal=False):
    pairs = n * (n + 1) // 2 if causal else n**2
    return pairs * D
