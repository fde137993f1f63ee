"""Measure what softmax does with scores whose variance grows with d."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kerneltrick.attention import softmax_attention
from kerneltrick.simulate._check import Floats, fits, whole, wholes

WIDTHS = tuple(2**p for p in range(11))


class Focus(NamedTuple):
    """How concentrated the weights of a query are, on average over the queries."""

    entropy: float  # −Σ p log p in nats: log n for uniform weights, 0 for a single key
    largest: float  # the largest weight
    gradient: float  # 1 − Σp², the trace of ∂softmax/∂scores = diag(p) − ppᵀ


class ScalingRow(NamedTuple):
    """Softmax of q·k and of q·k/√d over the same n keys, and the entropy in theory."""

    d: int
    plain: Focus
    scaled: Focus
    theory_plain: float
    theory_scaled: float


class Scaling(NamedTuple):
    n: int
    queries: int
    seed: int
    rows: tuple[ScalingRow, ...]


def scaling(
    widths: Sequence[int] = WIDTHS, *, n: int = 1024, queries: int = 256, seed: int = 0
) -> Scaling:
    """Measure the entropy of weights over n keys, with N(0, 1) coordinates, for `queries` queries.

    >>> row = scaling([256], n=128, queries=32).rows[0]
    >>> row.plain.entropy < 0.5, row.scaled.entropy > 4
    (True, True)
    """
    who = "scaling"
    widths = wholes(who, "widths", widths)
    n, queries = whole(who, "n", n, 2), whole(who, "queries", queries)
    seed = whole(who, "seed", seed, 0)
    fits(who, n, queries)
    fits(who, max(n, queries), max(widths))
    rows = []
    for d in widths:
        rng = np.random.default_rng([seed, d])
        q, k = rng.standard_normal((queries, d)), rng.standard_normal((n, d))
        plain, scaled = (focus(_weights(q, k, s)) for s in (1.0, 1 / math.sqrt(d)))
        rows.append(ScalingRow(d, plain, scaled, gaussian_entropy(n, d), gaussian_entropy(n, 1)))
    return Scaling(n, queries, seed, tuple(rows))


def focus(weights: Floats) -> Focus:
    """The mean focus of the rows of a matrix of weights, which are ≥ 0 and sum to 1.

    >>> focus(np.full((1, 4), 0.25)).gradient
    0.75
    """
    logs = np.log(weights, out=np.zeros_like(weights), where=weights > 0)
    return Focus(
        entropy=float(np.mean(-np.sum(weights * logs, axis=1))) + 0.0,  # avoids −0.0
        largest=float(np.mean(weights.max(axis=1))),
        gradient=float(np.mean(1 - np.sum(weights**2, axis=1))),
    )


def gaussian_entropy(n: int, variance: float) -> float:
    """The entropy of softmax over n independent scores N(0, variance), to leading order in n.

    log Σeˢ ≈ log n + v/2 and Σps ≈ v give log n − v/2, as long as typical scores dominate the sum.
    At v = 2 log n the largest score dominates, and the entropy is 0 to this order (the random
    energy model of Derrida 1981).

    >>> round(gaussian_entropy(1024, 1), 3), gaussian_entropy(1024, 64)
    (6.431, 0.0)
    """
    return max(math.log(n) - variance / 2, 0.0)


def _weights(q: Floats, k: Floats, scale: float) -> Floats:
    _, weights = softmax_attention(q, k, k[:, :1], scale=scale, return_weights=True)
    return np.asarray(weights)
