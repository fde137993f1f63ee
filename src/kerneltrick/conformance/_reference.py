"""The definitions: token by token, in NumPy. No engine is used.

The loops take float64, and complex numbers too, so that a derivative can be read from the imaginary
part of an output (`derivative`). Every array may have leading axes, all computed at once.
"""

from __future__ import annotations

import math
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
    (*lead, n, m), width = phi_k.shape, v.shape[-1]
    dtype = np.result_type(phi_q, phi_k, v, *(() if log_decay is None else (log_decay,)))
    U = np.zeros((*lead, m, width), dtype) if U is None else U.copy()
    Z = np.zeros((*lead, m), dtype) if Z is None else Z.copy()
    keep = np.ones(n, bool) if mask is None else mask
    asked = np.ones(phi_q.shape[-2], bool) if query_mask is None else query_mask
    o = np.zeros((*lead, phi_q.shape[-2], width), np.result_type(dtype, U))

    def read(row: Array) -> Array:
        sums = (row[..., None, :] @ U)[..., 0, :]
        with np.errstate(invalid="ignore", divide="ignore"):
            return sums / (row * Z).sum(-1, keepdims=True) if normalize else sums

    for t in range(n):
        if segment_ids is not None and t and segment_ids[t] != segment_ids[t - 1]:
            U, Z = np.zeros_like(U), np.zeros_like(Z)
        if not keep[t]:
            continue
        if log_decay is not None:
            a = np.broadcast_to(np.exp(log_decay[..., t, :]), (*lead, m))
            U, Z = a[..., None] * U, a * Z
        U = U + phi_k[..., t, :, None] * v[..., t, None, :]
        Z = Z + phi_k[..., t, :]
        if causal:
            o[..., t, :] = read(phi_q[..., t, :])
    if not causal:
        for i in np.flatnonzero(asked):
            o[..., i, :] = read(phi_q[..., i, :])
    return o, U, Z


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
    *lead, n, d = k.shape
    erase, read = k if erase is None else erase, k if read is None else read
    scale = 1 / np.sqrt(d) if scale is None else scale
    given = (q, k, v, beta, erase, read, *(() if log_decay is None else (log_decay,)))
    S = np.zeros((*lead, d, v.shape[-1]), np.result_type(*given)) if S is None else S.copy()
    rows = np.zeros((*lead, n, v.shape[-1]), S.dtype)
    for t in range(n):
        if segment_ids is not None and t and segment_ids[t] != segment_ids[t - 1]:
            S = np.zeros_like(S)
        if mask is not None and not mask[t]:
            continue
        if log_decay is not None:
            S = np.exp(log_decay[..., t, :])[..., None] * S
        answer = read[..., t, None, :] @ S
        step = beta[..., t, None, None]
        S = S - step * erase[..., t, :, None] * answer
        S = S + step * k[..., t, :, None] * v[..., t, None, :]
        rows[..., t, :] = scale * (q[..., t, None, :] @ S)[..., 0, :]
    return rows, S


def softmax_loop(
    q: Array,
    k: Array,
    v: Array,
    *,
    window: float = math.inf,
    sinks: int = 0,
    features: Callable[[Array], Array] | None = None,
) -> Array:
    """Causal softmax attention: q, k (n, d), v (n, M) → o.

    Near keys have weights e^{q·k/√d}: those less than `window` tokens away, and the first `sinks`.
    The others weigh φ(q)·φ(k) with φ = `features`, or are not seen.
    """
    o = np.zeros((*q.shape[:-1], v.shape[-1]), np.result_type(q, k, v))
    for t in range(q.shape[-2]):
        age = t - np.arange(t + 1)
        near = (age < window) | (age > t - sinks)
        seen = np.flatnonzero(near)
        score = (k[..., seen, :] @ q[..., t, :, None])[..., 0] / np.sqrt(q.shape[-1])
        most = score.real.max(-1, keepdims=True)
        if features is not None and not near.all():
            most = np.maximum(most, 0)
            distant = np.flatnonzero(~near)
            far = features(k[..., distant, :]) @ features(q[..., t, :])[..., None]
            seen = np.concatenate([seen, distant])
            weight = np.concatenate([np.exp(score - most), np.exp(-most) * far[..., 0]], axis=-1)
        else:
            weight = np.exp(score - most)
        mixed = (weight[..., None, :] @ v[..., seen, :])[..., 0, :]
        o[..., t, :] = mixed / weight.sum(-1, keepdims=True)
    return o


def scan_loop(C: Array, B: Array, x: Array, dt: Array, A: Array) -> Array:
    """The selective scan: C, B (n, N), x, dt (n, channels), A (channels, N) → o."""
    o = np.zeros(x.shape, np.result_type(C, B, x, dt, A))
    h = np.zeros((*x.shape[:-2], *A.shape), o.dtype)
    for t in range(x.shape[-2]):
        step = dt[..., t, :, None]
        h = np.exp(step * A) * h + step * x[..., t, :, None] * B[..., t, None, :]
        o[..., t, :] = (h @ C[..., t, :, None])[..., 0]
    return o


def convolution_loop(x: Array, weight: Array, bias: Array) -> Array:
    """The short convolution: x (n, channels), weight (channels, taps), bias (channels,) → o."""
    o = np.zeros(x.shape, np.result_type(x, weight, bias)) + bias
    for t in range(x.shape[-2]):
        for back in range(min(weight.shape[-1], t + 1)):
            o[..., t, :] += weight[:, -1 - back] * x[..., t - back, :]
    return o


def elu_features(x: Array) -> Array:
    """ELU(x) + 1."""
    return np.where(x.real > 0, x + 1, np.exp(np.where(x.real > 0, 0, x)))


def side_by_side(arrays: list[Any]) -> list[Any]:
    """Arrays (batch, heads, n, …) with as many heads as the one that has most; parameters stay."""
    heads = max(x.shape[1] for x in arrays if x.ndim > 2)
    return [x if x.ndim < 3 else x[:, np.arange(heads) * x.shape[1] // heads] for x in arrays]


def derivative(loop: Callable[..., Array], arrays: list[Array], directions: list[Any]) -> Array:
    """How fast the outputs change as the arrays move in these directions; None does not move."""
    moved = [
        x if way is None else x + 1j * STEP * way for x, way in zip(arrays, directions, strict=True)
    ]
    return loop(*side_by_side(moved)).imag / STEP
