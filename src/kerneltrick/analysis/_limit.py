"""The limit for any feature map: how close the weights of a map with m features can get to softmax.

Full attention: φ(Q)φ(K)ᵀ, row-normalised, has rank ≤ m, so its squared distance to the softmax
weights S is at least Σ_{r>m} σ_r(S)² (Eckart–Young). Causal attention: the masked matrix is not of
rank m, but its blocks A[mid:hi, lo:mid] below the diagonal are; the dyadic ones do not overlap, so
the sum of their tails is a bound. Derivation: docs/03_feature_maps.md.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick.analysis._blocks import WHOLE_UP_TO
from kerneltrick.analysis._sampled import sampled_rows


@dataclasses.dataclass(frozen=True, eq=False)
class Limit:
    """Singular values of the softmax weights of one head, whole or in dyadic blocks."""

    tails: tuple[Array, ...]  # for each block, Σ_{r>m} σ_r² for m = 0, 1, 2, …
    entries: float  # number of weights in the mean squared error
    kind: str  # "bound", or "estimate" if only some rows were used
    effective_rank: float  # exp of the entropy of σ/Σσ (Roy & Vetterli 2007); NaN for an estimate

    def mse(self, m: int) -> float:
        """Return the smallest mean squared error of the weights of any map with m features."""
        return float(sum(t[m] for t in self.tails if m < len(t))) / self.entries


def weight_limit(q: Array, k: Array, scale: float, causal: bool, seed: int = 0) -> Limit:
    """Return the limit for q (n_q, d) and k (n, d) of one head; above n = 2048 an estimate.

    >>> x = np.random.default_rng(0).standard_normal((40, 8))
    >>> full = weight_limit(x, x, 1.0, causal=False)
    >>> full.mse(0) > full.mse(5) > full.mse(40) == 0, full.kind
    (True, 'bound')
    """
    n_q, n = len(q), len(k)
    if max(n_q, n) > WHOLE_UP_TO:
        return _estimate(q, k, scale, causal, seed)
    weights = _softmax_rows(q, k, scale, np.arange(n_q), causal)
    if not causal:
        values = np.linalg.svd(weights, compute_uv=False)
        return Limit((_tail(values),), float(n_q * n), "bound", _effective_rank(values))
    tails = tuple(
        _tail(np.linalg.svd(weights[mid:high, low:mid], compute_uv=False))
        for low, mid, high in dyadic_blocks(n)
    )
    rank = _effective_rank(np.linalg.svd(weights, compute_uv=False))
    return Limit(tails, n * (n + 1) / 2, "bound", rank)


def dyadic_blocks(n: int) -> list[tuple[int, int, int]]:
    """Return (low, mid, high) of the blocks A[mid:high, low:mid]: halves, quarters, eighths, …

    >>> dyadic_blocks(4)
    [(0, 2, 4), (0, 1, 2), (2, 3, 4)]
    """
    found, stretches = [], [(0, n)]
    while stretches:
        low, high = stretches.pop(0)
        if high - low >= 2:
            mid = (low + high) // 2
            found.append((low, mid, high))
            stretches += [(low, mid), (mid, high)]
    return found


def _estimate(q: Array, k: Array, scale: float, causal: bool, seed: int) -> Limit:
    """Estimate the tails from 512 random rows, scaled up to all rows.

    Leaving out rows can only lower the tail beyond rank 512, so this is not a bound.
    """
    n_q, n = len(q), len(k)
    rows = sampled_rows(n_q, seed)
    weights = _softmax_rows(q, k, scale, rows, causal)
    share = n_q / len(rows)
    if not causal:
        tail = _tail(np.linalg.svd(weights, compute_uv=False)) * share
        return Limit((tail,), float(n_q * n), "estimate", math.nan)
    tails = []
    for low, mid, high in dyadic_blocks(n):
        inside = (rows >= mid) & (rows < high)
        if inside.sum() > 1:
            block = weights[inside, low:mid]
            tails.append(_tail(np.linalg.svd(block, compute_uv=False)) * share)
    return Limit(tuple(tails), n * (n + 1) / 2, "estimate", math.nan)


def _softmax_rows(q: Array, k: Array, scale: float, rows: Array, causal: bool) -> Array:
    with np.errstate(over="ignore", invalid="ignore"):
        scores = scale * q[rows] @ k.T
    if not np.isfinite(scores).all():
        raise ValueError(f"weight_limit: q·k at scale {scale:g} is not finite in {scores.dtype}")
    if causal:
        scores = np.where(np.arange(len(k)) <= rows[:, None], scores, -math.inf)
    weights: Array = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return weights


def _tail(values: Array) -> Array:
    """Return Σ_{r>m} σ_r² for m = 0, 1, …, len(values); values below rounding count as 0."""
    squares = np.where(values > values.max(initial=0.0) * 1e-14, values, 0.0) ** 2
    return np.concatenate([np.cumsum(squares[::-1])[::-1], [0.0]])


def _effective_rank(values: Array) -> float:
    p = values[values > 0] / values.sum()
    return float(np.exp(-np.sum(p * np.log(p))))
