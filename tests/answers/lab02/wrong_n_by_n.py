"""linear_attention_order: this forms an n×n array: peak memory grows as n²"""


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    weights = feature_map(Q) @ feature_map(K).T
    if normalize:
        weights = weights / weights.sum(axis=1, keepdims=True)
    return weights @ V
