"""einsum, cumulative sums, another order of features."""

import numpy as np


def quadratic_map(x):
    extended = np.concatenate([x, np.ones_like(x[:, :1])], axis=1)
    products = np.einsum("ni,nj->nij", extended, extended)
    i, j = np.tril_indices(extended.shape[1])
    return products[:, i, j] * np.where(i == j, 1.0, np.sqrt(2.0))


def attention_by_kernel(Q, K, V):
    S = np.square(np.einsum("id,jd->ij", Q, K) + 1)
    total = np.einsum("ij->i", S)
    if not total.all():
        raise ZeroDivisionError
    return np.einsum("ij,jm->im", S / total[:, None], V)


def attention_by_features(Q, K, V):
    phi_Q, phi_K = quadratic_map(Q), quadratic_map(K)
    U = np.einsum("jf,jm->fm", phi_K, V)
    return np.einsum("if,fm->im", phi_Q, U) / np.einsum("if,jf->i", phi_Q, phi_K)[:, None]


def causal_attention_by_features(Q, K, V):
    phi_Q, phi_K = quadratic_map(Q), quadratic_map(K)
    U = np.cumsum(np.einsum("jf,jm->jfm", phi_K, V), axis=0)
    Z = np.cumsum(phi_K, axis=0)
    return np.einsum("if,ifm->im", phi_Q, U) / np.einsum("if,if->i", phi_Q, Z)[:, None]
