"""linear_attention_order: φ(Q) and φ(K) are normalised separately: the weights of a row"""


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    q, k = feature_map(Q), feature_map(K)
    if normalize:
        q = q / q.sum(axis=-1, keepdims=True)
        k = k / k.sum(axis=-1, keepdims=True)
    return q @ (k.T @ V)
