"""Lower precision, and other formulas."""

import numpy as np


def recurrent_attention(Q, K, V):
    Q, K, V = (x.astype(np.float32) for x in (Q, K, V))
    return np.tril(Q @ K.T) @ V, K.T @ V


def delta_rule(Q, K, V, beta, state=None):
    Q, K, V, beta = (x.astype(np.float32) for x in (Q, K, V, beta))
    S = np.zeros((K.shape[1], V.shape[1]), np.float32) if state is None else state
    W = written_values(K, V - K @ S, beta)
    return Q @ S + np.tril(Q @ K.T) @ W, S + K.T @ W


def written_values(K, V, beta):
    triangle = np.diag(1 / beta) + np.tril(K @ K.T, -1)
    return np.linalg.inv(triangle) @ V


def delta_attention(Q, K, beta):
    return np.tril(Q @ K.T) @ np.linalg.inv(np.diag(1 / beta) + np.tril(K @ K.T, -1))


def parity(bits):
    return np.cumsum(bits) % 2
