"""multi_head_attention: a single head as wide as all of them"""


def multi_head_attention(X, W_q, W_k, W_v, W_o, heads, causal=False):
    return softmax_attention(X @ W_q, X @ W_k, X @ W_v, causal) @ W_o
