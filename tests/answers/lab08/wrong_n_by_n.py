"""chunked_delta_rule: this forms an n×n array: peak memory grows as n². Carry S"""


def chunked_delta_rule(Q, K, V, beta, chunk=64):
    return delta_attention(Q, K, beta) @ V, K.T @ written_values(K, V, beta)
