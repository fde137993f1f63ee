"""attention_by_features: this forms an n×n array: peak memory grows as n²"""


def attention_by_features(Q, K, V):
    weights = quadratic_map(Q) @ quadratic_map(K).T
    return weights @ V / weights.sum(axis=1, keepdims=True)
