"""linear_attention_order: your output matches attention without the normaliser"""


def linear_attention_order(Q, K, V, feature_map, normalize=False):
    return feature_map(Q) @ (feature_map(K).T @ V)
