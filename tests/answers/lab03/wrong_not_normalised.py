"""compute_implicit_attention: the rows are not normalised"""


def compute_implicit_attention(Q, K, feature_map):
    return feature_map(Q) @ feature_map(K).T
