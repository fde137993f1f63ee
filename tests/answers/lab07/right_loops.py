"""One number at a time."""

import math

import numpy as np


def taylor_feature_map(x):
    rows = x.reshape(-1, x.shape[-1])
    d = rows.shape[1]
    found = []
    for row in rows:
        features = [1.0]
        features += [value / d**0.25 for value in row]
        for i in range(d):
            for j in range(i, d):
                product = row[i] * row[j] / math.sqrt(d)
                features.append(product / math.sqrt(2) if i == j else product)
        found.append(features)
    return np.array(found).reshape(*x.shape[:-1], -1)


def based_weights(x, W_q, W_k):
    n, d = len(x), W_q.shape[1]
    q, k = x @ W_q, x @ W_k
    weights = np.zeros((n, n))
    for i in range(n):
        for j in range(i + 1):
            t = float(q[i] @ k[j]) / math.sqrt(d)
            weights[i, j] = 1 + t + t * t / 2
        weights[i] /= sum(weights[i])
    return weights


def state_size(d, value_width, compact=True):
    products = sum(1 for i in range(d) for j in range(d) if not compact or i <= j)
    m = 1 + d + products
    return m * value_width + m


def sliding_window_attention(Q, K, V, window):
    output = []
    for i in range(len(Q)):
        first = max(0, i - window + 1)
        scores = K[first : i + 1] @ Q[i] / math.sqrt(Q.shape[1])
        weights = np.exp(scores - max(scores))
        output.append(
            sum(w * v for w, v in zip(weights, V[first : i + 1], strict=True)) / sum(weights)
        )
    return np.array(output)


def windowed_taylor_attention(Q, K, V, window):
    d, width = Q.shape[1], V.shape[1]
    phi_q, phi_k = taylor_feature_map(Q), taylor_feature_map(K)
    U, Z = np.zeros((phi_k.shape[1], width)), np.zeros(phi_k.shape[1])
    output = np.zeros((len(Q), width))
    for i in range(len(Q)):
        left = i - window
        if left >= 0:  # a token leaves the window and enters the state
            U += np.outer(phi_k[left], V[left])
            Z += phi_k[left]
        first = max(0, left + 1)
        scores = K[first : i + 1] @ Q[i] / math.sqrt(d)
        shift = max(0.0, max(scores))
        near, unit = np.exp(scores - shift), math.exp(-shift)
        total = near.sum() + unit * (phi_q[i] @ Z)
        output[i] = (near @ V[first : i + 1] + unit * (phi_q[i] @ U)) / total
    return output
