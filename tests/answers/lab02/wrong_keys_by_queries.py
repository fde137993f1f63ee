"""standard_attention_order: the weights are KQᵀ"""


def standard_attention_order(Q, K, V):
    weights = K @ Q.T
    return weights @ V, weights
