"""The definitions: one head, token by token, in NumPy. No engine is used.

The loops take float64, and complex numbers too, so that a derivative can be read from the imaginary
part of an output (`derivative`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick._arrays import Array

STEP = 1e-200  # of the complex step: x + i·h gives f(x) + i·h·f′(x), with no difference to round


def linear_loop(
    phi_q: Array,
    phi_k: Array,
    v: Array,
    *,
    causal: bool = False,
    normalize: bool = True,
    mask: Array | None = None,
    query_mask: Array | None = None,
    log_decay: Array | None = None,
    segment_ids: Array | None = None,
    U: Array | None = None,
    Z: Array | None = None,
) -> tuple[Array, Array, Array]:
    """Linear attention: phi_q (n_q, m), phi_k (n, m), v (n, M), log_decay (n, 1 or m) → o, U, Z."""
    n, m = phi_k.shape
    dtype = np.result_type(phi_q, phi_k, v, *(() if log_decay is None else (log_decay,)))
    U = np.zeros((m, v.shape[1]), dtype) if U is None else U.copy()
    Z = np.zeros(m, dtype) if Z is None else Z.copy()
    keep = np.ones(n, bool) if mask is None else mask
    rows = []

    def read(row: Array) -> Array:
        with np.errstate(invalid="ignore", divide="ignore"):
            return row @ U / (row @ Z) if normalize else row @ U

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
            rows.append(read(phi_q[t]) if keep[t] else np.zeros(v.shape[1]))
    if not causal:
        for i in range(len(phi_q)):
            hidden = query_mask is not None and not query_mask[i]
            rows.append(np.zeros(v.shape[1]) if hidden else read(phi_q[i]))
    return np.array(rows).reshape(-1, v.shape[1]), U, Z


def delta_loop(
    q: Array,
    k: Array,
    v: Array,
    beta: Array,
    *,
    log_decay: Array | None = None,
    erase: Array | None = None,
    read: Array | None = None,
    scale: float | None = None,
    mask: Array | None = None,
    segment_ids: Array | None = None,
    S: Array | None = None,
) -> tuple[Array, Array]:
    """The delta rule: q, k (n, d), v (n, M), beta (n,), log_decay (n, 1 or d) → o, S."""
    n, d = k.shape
    erase, read = k if erase is None else erase, k if read is None else read
    scale = 1 / np.sqrt(d) if scale is None else scale
    given = (q, k, v, beta, erase, read, *(() if log_decay is None else (log_decay,)))
    S = np.zeros((d, v.shape[1]), np.result_type(*given)) if S is None else S.copy()
    rows = np.zeros((n, v.shape[1]), S.dtype)
    for t in range(n):
        if segment_ids is not None and t and segment_ids[t] != segment_ids[t - 1]:
            S = np.zeros_like(S)
        if mask is not None and not mask[t]:
            continue
        if log_decay is not None:
            S = np.diag(np.exp(np.broadcast_to(log_decay[t], (d,)))) @ S
        answer = read[t] @ S
        S = S - beta[t] * np.outer(erase[t], answer) + beta[t] * np.outer(k[t], v[t])
        rows[t] = scale * (q[t] @ S)
    return rows, S


def softmax_loop(q: Array, k: Array, v: Array) -> Array:
    """Causal softmax attention: q, k (n, d), v (n, M) → o."""
    rows = []
    for t in range(len(q)):
        score = k[: t + 1] @ q[t] / np.sqrt(q.shape[1])
        weight = np.exp(score - score.real.max())
        rows.append(weight @ v[: t + 1] / weight.sum())
    return np.array(rows).reshape(-1, v.shape[1])


def elu_features(x: Array) -> Array:
    """ELU(x) + 1."""
    return np.where(x.real > 0, x + 1, np.exp(np.where(x.real > 0, 0, x)))


def by_head(loop: Callable[..., Array], arrays: list[Array]) -> Array:
    """The outputs of a loop for arrays (batch, heads, n, …)."""
    batch, heads = arrays[0].shape[:2]
    return np.array(
        [[loop(*(x[b, h] for x in arrays)) for h in range(heads)] for b in range(batch)]
    )


def derivative(loop: Callable[..., Array], arrays: list[Array], directions: list[Any]) -> Array:
    """How fast the outputs change as the arrays move in these directions; None does not move."""
    moved = [
        x if way is None else x + 1j * STEP * way for x, way in zip(arrays, directions, strict=True)
    ]
    return by_head(loop, moved).imag / STEP
