"""attention_by_features: your output matches U divided by Z feature by feature"""


def attention_by_features(Q, K, V):
    phi_Q, phi_K = quadratic_map(Q), quadratic_map(K)
    U, Z = phi_K.T @ V, phi_K.sum(axis=0)
    return phi_Q @ (U / Z[:, None])
