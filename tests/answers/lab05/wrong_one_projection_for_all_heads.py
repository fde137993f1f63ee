"""multi_query_attention: as if all heads had one output projection"""

import numpy as np


def multi_query_attention(X, W_q, W_k, W_v, W_o):
    Q = np.einsum("bnd,hdk->bhnk", X, W_q)
    K, V = (X @ W_k)[:, None], (X @ W_v)[:, None]
    heads = softmax_attention(Q, K, V, causal=True)
    return heads.sum(axis=1) @ W_o.sum(axis=0)
