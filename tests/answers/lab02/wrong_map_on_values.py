"""linear_attention_order: φ is applied to V too"""


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    q, k, v = map(feature_map, (Q, K, V))
    return q @ (k.T @ v) / ((q @ k.sum(axis=0))[:, None] if normalize else 1)
