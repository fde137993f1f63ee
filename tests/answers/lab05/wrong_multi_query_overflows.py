"""multi_query_attention: NaN where scores are large: subtract the largest score"""

import numpy as np


def multi_query_attention(X, W_q, W_k, W_v, W_o):
    scores = np.einsum("bnd,hdk,bme,ek->bhnm", X, W_q, X, W_k) / np.sqrt(W_k.shape[1])
    weights = np.tril(np.exp(scores))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhnm,bme,ev,hvd->bnd", weights, X, W_v, W_o)
