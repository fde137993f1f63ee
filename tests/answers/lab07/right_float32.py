"""Everything in float32, lists where a tuple would do."""

import numpy as np

f32 = np.float32


def taylor_feature_map(x):
    x = f32(x) * f32(x.shape[-1] ** -0.25)
    features = [np.ones_like(x[..., 0])]
    for i in range(x.shape[-1]):
        features.append(x[..., i])
        features.append(x[..., i] ** 2 / f32(np.sqrt(2)))
        features.extend(x[..., i] * x[..., j] for j in range(i))
    return np.stack(features, axis=-1)


def recurrent_attention(phi_q, phi_k, V, state=None):
    phi_q, phi_k, V = f32(phi_q), f32(phi_k), f32(V)
    U, Z = (f32(0), f32(0)) if state is None else (f32(state[0]), f32(state[1]))
    output = []
    for q, k, v in zip(phi_q, phi_k, V, strict=True):
        U, Z = U + k[:, None] * v, Z + k
        output.append((q @ U) / (q @ Z))
    return [np.array(output), [U, Z]]


def sliding_window_attention(Q, K, V, window):
    Q, K, V = f32(Q), f32(K), f32(V)
    age = np.arange(len(Q))[:, None] - np.arange(len(Q))
    scores = np.where((age >= 0) & (age < window), Q @ K.T / f32(np.sqrt(Q.shape[1])), f32(-1e30))
    weights = np.exp(scores - scores.max(axis=1)[:, None])
    return weights / weights.sum(axis=1)[:, None] @ V
