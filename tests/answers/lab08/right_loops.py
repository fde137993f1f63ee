"""Every entry by a loop."""

import numpy as np


def recurrent_attention(Q, K, V):
    return decayed_attention(Q, K, V, np.ones(len(Q)))


def decayed_attention(Q, K, V, decay):
    S = [[0.0] * V.shape[1] for _ in range(K.shape[1])]
    output = np.zeros((len(Q), V.shape[1]))
    for t in range(len(Q)):
        for i in range(len(S)):
            for j in range(len(S[0])):
                S[i][j] = decay[t] * S[i][j] + K[t, i] * V[t, j]
                output[t, j] += Q[t, i] * S[i][j]
    return output, np.array(S)


def delta_rule(Q, K, V, beta, state=None):
    S = np.zeros((K.shape[1], V.shape[1])) if state is None else np.array(state)
    output = []
    for q, k, v, b in zip(Q, K, V, beta, strict=True):
        S = (np.eye(len(k)) - b * np.outer(k, k)) @ S + b * np.outer(k, v)
        output.append(q @ S)
    return np.array(output), S


def gated_delta_rule(Q, K, V, beta, decay):
    S, output = None, []
    for t in range(len(Q)):
        now = slice(t, t + 1)
        o, S = delta_rule(Q[now], K[now], V[now], beta[now], None if S is None else decay[t] * S)
        output.append(o[0])
    return np.array(output), S


def written_values(K, V, beta):
    W = np.zeros(V.shape)
    for t in range(len(K)):
        W[t] = beta[t] * (V[t] - sum((K[t] @ K[j]) * W[j] for j in range(t)))
    return W


def chunked_delta_rule(Q, K, V, beta, chunk=64):
    S, outputs = np.zeros((K.shape[1], V.shape[1])), []
    for start in range(0, len(Q), chunk):
        now = slice(start, start + chunk)
        output, S = delta_rule(Q[now], K[now], V[now], beta[now], S)
        outputs.append(output)
    return np.concatenate(outputs), S


def delta_attention(Q, K, beta):
    return delta_rule(Q, K, np.eye(len(K)), beta)[0]


def parity(bits):
    odd, found = 0, []
    for bit in bits:
        odd = 1 - odd if bit else odd
        found.append(odd)
    return np.array(found)
