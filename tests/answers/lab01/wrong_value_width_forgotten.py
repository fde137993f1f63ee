"""softmax_multiply_adds: the second one uses the width M of the values"""


def softmax_multiply_adds(n, D, M, causal=False):
    scores = output = n * n * D
    if causal:
        scores = output = n * (n + 1) // 2 * D
    return scores + output
