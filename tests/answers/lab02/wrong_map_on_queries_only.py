"""linear_attention_order: φ is applied to Q only"""


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    q = feature_map(Q)
    return q @ (K.T @ V) / ((q @ K.sum(axis=0))[:, None] if normalize else 1)
