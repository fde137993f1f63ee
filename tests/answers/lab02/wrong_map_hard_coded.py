"""linear_attention_order: you always use ELU + 1 as φ: call feature_map(Q) and"""


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    q, k = elu_feature_map(Q), elu_feature_map(K)
    output = q @ (k.T @ V)
    return output / (q @ k.sum(axis=0))[:, None] if normalize else output
