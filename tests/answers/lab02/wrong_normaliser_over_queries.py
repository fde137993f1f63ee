"""linear_attention_order: the normaliser is summed over the queries"""


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    q, k = feature_map(Q), feature_map(K)
    output = q @ (k.T @ V)
    return output / (k @ q.sum(axis=0))[:, None] if normalize else output
