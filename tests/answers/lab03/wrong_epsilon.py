"""compute_implicit_attention: a small number (1e-6) in the denominator hides the row"""


def compute_implicit_attention(Q, K, feature_map):
    weights = feature_map(Q) @ feature_map(K).T
    return weights / (weights.sum(axis=1, keepdims=True) + 1e-6)
