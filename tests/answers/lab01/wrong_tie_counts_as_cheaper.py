"""crossover_length: your n is one too small where both take the same: linear attention is"""


def crossover_length(D, m, M, causal=False):
    n = 1
    while linear_multiply_adds(n, m, M) > softmax_multiply_adds(n, D, M, causal):
        n += 1
    return n
