"""crossover_length: with causal=True your n assumes n²/2 pairs: there are n(n+1)/2, so"""


def crossover_length(D, m, M, causal=False):
    softmax = (D + M) / 2 if causal else D + M
    linear = 2 * m * (M + 1)
    return int(linear // softmax) + 1
