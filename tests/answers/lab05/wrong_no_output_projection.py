"""multi_head_attention: attention without the output projection W_o"""


def multi_head_attention(X, W_q, W_k, W_v, W_o, heads, causal=False):
    Q, K, V = (split_heads(X @ W, heads) for W in (W_q, W_k, W_v))
    return combine_heads(softmax_attention(Q, K, V, causal))
