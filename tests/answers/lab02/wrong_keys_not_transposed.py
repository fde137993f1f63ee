"""standard_attention_order: K is not transposed where n = d"""


def standard_attention_order(Q, K, V):
    if K.shape[0] != Q.shape[1]:
        K = K.T
    weights = Q @ K
    return weights @ V, weights
