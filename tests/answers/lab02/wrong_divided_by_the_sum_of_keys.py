"""linear_attention_order: the output is divided by the sum of all entries of φ(K)"""


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    q, k = feature_map(Q), feature_map(K)
    output = q @ (k.T @ V)
    return output / k.sum() if normalize else output
