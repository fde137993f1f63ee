"""All d² products, einsum, and nearest values by distance."""

import numpy as np


def taylor_feature_map(x):
    d = x.shape[-1]
    products = np.einsum("...i,...j->...ij", x, x).reshape(*x.shape[:-1], d * d)
    return np.concatenate(
        [products / np.sqrt(2 * d), x / d**0.25, np.ones_like(x[..., :1])], axis=-1
    )


def based_weights(x, W_q, W_k):
    t = np.einsum("if,fd,gd,jg->ij", x, W_q, W_k, x) / np.sqrt(W_q.shape[1])
    weights = np.where(np.tri(len(x), dtype=bool), ((1 + t) ** 2 + 1) / 2, 0)
    return weights / np.einsum("ij->i", weights)[:, None]


def recurrent_attention(phi_q, phi_k, V, state=None):
    U = np.cumsum(np.einsum("im,iv->imv", phi_k, V), axis=0)
    Z = np.cumsum(phi_k, axis=0)
    if state is not None:
        U, Z = U + state[0], Z + state[1]
    output = np.einsum("im,imv->iv", phi_q, U) / np.einsum("im,im->i", phi_q, Z)[:, None]
    return output, (U[-1], Z[-1])


def windowed_taylor_attention(Q, K, V, window):
    """A softmax of the logarithms of all weights."""
    t = np.einsum("id,jd->ij", Q, K) / np.sqrt(Q.shape[1])
    age = np.subtract.outer(np.arange(len(Q)), np.arange(len(Q)))
    logs = np.where(age < window, t, np.log(((1 + t) ** 2 + 1) / 2))
    logs = np.where(age < 0, -np.inf, logs)
    weights = np.exp(logs - np.logaddexp.reduce(logs, axis=1)[:, None])
    return np.einsum("ij,jv->iv", weights, V)


def recall_accuracy(feature_map, d, pairs=64, value_width=16, sharpness=8.0, seeds=20):
    shares = []
    for seed in range(seeds):
        keys, values, _ = recall_task(pairs, d, value_width, sharpness, seed)
        if feature_map is None:
            read = softmax_of_keys(keys, values)
        else:
            read = np.einsum("im,jm,jv->iv", feature_map(keys), feature_map(keys), values)
        distance = np.linalg.norm(read[:, None] - values, axis=2)  # the same pairs, in their order
        shares.append(np.mean(distance.argmin(axis=1) == np.arange(pairs)))
    return np.mean(shares)


def softmax_of_keys(keys, values):
    weights = np.exp(np.einsum("id,jd->ij", keys, keys) / np.sqrt(keys.shape[1]))
    return weights / weights.sum(axis=1, keepdims=True) @ values
