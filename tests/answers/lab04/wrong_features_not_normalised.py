"""attention_by_features: your output matches attention without the normaliser"""


def attention_by_features(Q, K, V):
    return quadratic_map(Q) @ (quadratic_map(K).T @ V)
