"""standard_attention_order: the output and the weights are swapped"""


def standard_attention_order(Q, K, V):
    weights = Q @ K.T
    return weights, weights @ V
