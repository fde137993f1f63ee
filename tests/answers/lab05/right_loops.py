"""Lab 05 with loops over queries, heads and sequences."""

import math

import numpy as np


def attend(q, keys, values):
    """One query."""
    scores = [float(np.dot(q, k)) / math.sqrt(len(q)) for k in keys]
    top = max(scores)
    weights = [math.exp(score - top) for score in scores]
    return sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights)


def softmax_attention(Q, K, V, causal=False):
    if Q.ndim > 2:
        return np.array([softmax_attention(*one, causal) for one in zip(Q, K, V, strict=True)])
    rows = []
    for i, q in enumerate(Q):
        seen = i + 1 if causal else len(K)
        rows.append(attend(q, K[:seen], V[:seen]))
    return np.array(rows)


def hard_attention(Q, K, V):
    output = np.empty((len(Q), V.shape[1]))
    for i, q in enumerate(Q):
        best = 0
        for j in range(1, len(K)):
            if np.dot(q, K[j]) > np.dot(q, K[best]):
                best = j
        output[i] = V[best]
    return output


def hard_attention_gradients(Q, K, V, grad):
    dQ, dK, dV = 0 * Q, 0 * K, 0 * V
    for q, g in zip(Q, grad, strict=True):
        dV[np.argmax([np.dot(q, k) for k in K])] += g
    return dQ, dK, dV


def split_heads(X, heads):
    return np.stack(np.split(X, heads, axis=-1), axis=-3)


def combine_heads(X):
    return np.concatenate([X[..., head, :, :] for head in range(X.shape[-3])], axis=-1)


def multi_head_attention(X, W_q, W_k, W_v, W_o, heads, causal=False):
    if X.ndim == 3:
        each = [multi_head_attention(x, W_q, W_k, W_v, W_o, heads, causal) for x in X]
        return np.array(each)
    k, v = W_q.shape[1] // heads, W_v.shape[1] // heads
    output = 0
    for i in range(heads):
        Q, K = X @ W_q[:, i * k : (i + 1) * k], X @ W_k[:, i * k : (i + 1) * k]
        V = X @ W_v[:, i * v : (i + 1) * v]
        output = output + softmax_attention(Q, K, V, causal) @ W_o[i * v : (i + 1) * v]
    return output


def multi_query_attention(X, W_q, W_k, W_v, W_o):
    output = np.zeros(X.shape)
    for i, x in enumerate(X):
        K, V = x @ W_k, x @ W_v
        for w_q, w_o in zip(W_q, W_o, strict=True):
            output[i] += softmax_attention(x @ w_q, K, V, causal=True) @ w_o
    return output


def decoding_step(x, W_q, W_k, W_v, W_o, keys, values):
    b, (h, d, _), g = len(x), W_q.shape, len(W_k)
    new_keys = [[np.vstack([keys[i, j], x[i] @ W_k[j]]) for j in range(g)] for i in range(b)]
    new_values = [[np.vstack([values[i, j], x[i] @ W_v[j]]) for j in range(g)] for i in range(b)]
    output = np.zeros((b, d))
    for i in range(b):
        for head in range(h):
            j = head // (h // g)
            output[i] += attend(x[i] @ W_q[head], new_keys[i][j], new_values[i][j]) @ W_o[head]
    return output, np.array(new_keys), np.array(new_values)
