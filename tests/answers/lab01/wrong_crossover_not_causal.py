"""crossover_length: your n ignores causal: softmax attention then computes about half the"""


def crossover_length(D, m, M, causal=False):
    return 2 * m * (M + 1) // (D + M) + 1
