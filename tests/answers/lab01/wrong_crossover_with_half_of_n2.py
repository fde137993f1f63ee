"""crossover_length: your n is that of n²/2 pairs"""


def crossover_length(D, m, M, causal=False):
    softmax = (D + M) / 2 if causal else D + M
    linear = 2 * m * (M + 1)
    return int(linear // softmax) + 1
