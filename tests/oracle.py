"""Linear attention as plain Python loops over tokens, in float64: what every engine must equal."""

import math

import numpy as np


def brute_force(
    phi_q,
    phi_k,
    v,
    *,
    causal=False,
    normalize=True,
    mask=None,
    query_mask=None,
    log_decay=None,
    segment_ids=None,
    U=None,
    Z=None,
):
    """One head: phi_q (n_q, m), phi_k (n, m), v (n, M), log_decay (n, 1 or m) → output, U, Z."""
    n, m = phi_k.shape
    M = v.shape[1]
    U = np.zeros((m, M)) if U is None else U.copy()
    Z = np.zeros(m) if Z is None else Z.copy()
    keep = np.ones(n, bool) if mask is None else mask
    rows = []

    def read(row):
        top = [sum(row[f] * U[f, c] for f in range(m)) for c in range(M)]
        return [t / sum(row[f] * Z[f] for f in range(m)) for t in top] if normalize else top

    for t in range(n):
        if segment_ids is not None and t and segment_ids[t] != segment_ids[t - 1]:
            U, Z = np.zeros_like(U), np.zeros_like(Z)
        if keep[t]:
            if log_decay is not None:
                a = np.broadcast_to(np.exp(log_decay[t]), (m,))
                U, Z = a[:, None] * U, a * Z
            U = U + np.outer(phi_k[t], v[t])
            Z = Z + phi_k[t]
        if causal:
            rows.append(read(phi_q[t]) if keep[t] else [0.0] * M)
    if not causal:
        for i in range(len(phi_q)):
            rows.append(read(phi_q[i]) if query_mask is None or query_mask[i] else [0.0] * M)
    return np.array(rows, dtype=np.float64).reshape(-1, M), U, Z


def ulp(x):
    """The spacing of float32 at the largest magnitude of x."""
    top = float(np.max(np.abs(x), initial=0.0))
    return float(np.spacing(np.float32(top))) if math.isfinite(top) else math.nan
