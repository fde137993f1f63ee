"""attention_by_features: your output matches a normaliser with Z = Σφ(q)"""


def attention_by_features(Q, K, V):
    phi_Q, phi_K = quadratic_map(Q), quadratic_map(K)
    return phi_Q @ (phi_K.T @ V) / (phi_Q @ phi_Q.sum(axis=0))[:, None]
