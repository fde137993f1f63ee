"""standard_attention_order: K is not transposed if n = d: QK is not QKᵀ"""


def standard_attention_order(Q, K, V):
    if K.shape[0] != Q.shape[1]:
        K = K.T
    weights = Q @ K
    return weights @ V, weights
