"""decoding_step: your softmax overflows: subtract the largest score of each query"""

import numpy as np


def decoding_step(x, W_q, W_k, W_v, W_o, keys, values):
    q = np.einsum("bd,hdk->bhk", x, W_q)
    keys = np.concatenate([keys, np.einsum("bd,gdk->bgk", x, W_k)[:, :, None]], axis=2)
    values = np.concatenate([values, np.einsum("bd,gdv->bgv", x, W_v)[:, :, None]], axis=2)
    share = len(W_q) // len(W_k)
    K, V = np.repeat(keys, share, axis=1), np.repeat(values, share, axis=1)
    weights = np.exp(np.einsum("bhk,bhnk->bhn", q, K) / np.sqrt(q.shape[-1]))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("bhn,bhnv,hvd->bd", weights, V, W_o), keys, values
