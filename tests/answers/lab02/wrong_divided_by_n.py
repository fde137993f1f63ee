"""linear_attention_order: the output is divided by n"""


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    q, k = feature_map(Q), feature_map(K)
    output = q @ (k.T @ V)
    return output / len(K) if normalize else output
