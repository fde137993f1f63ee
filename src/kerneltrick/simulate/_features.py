"""Measure the error of random features and compare it with theory and with ELU+1."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kerneltrick import maps
from kerneltrick.attention import attention_weights
from kerneltrick.simulate._check import Floats, fits, positive, whole, wholes

KINDS = ("positive", "hyperbolic", "trig")
FEATURES = (16, 32, 64, 128, 256, 512, 1024, 2048)


class FeatureRow(NamedTuple):
    """The relative errors of FAVOR+ with m features, root mean squares over pairs and draws.

    `kernel` is the error of φ(q)·φ(k) relative to e^{q·k}, and `theory` is its value from the
    known variances. `weights` is ‖A − S‖/‖S‖ of the normalised weights, and `theory_weights` its
    limit for large m, which is known for the positive kind.
    """

    kind: str
    m: int
    kernel: float
    theory: float
    weights: float
    theory_weights: float | None


class FeatureErrors(NamedTuple):
    """Errors for coordinates N(0, size²) of q and k, scaled by d^{−1/4} as in softmax attention."""

    d: int
    n: int
    size: float
    draws: int
    seed: int
    mean_square: float  # the mean of ‖q + k‖² over the pairs, after scaling
    elu: float  # ‖A − S‖/‖S‖ of ELU+1, which has d features
    uniform: float  # ‖A − S‖/‖S‖ of the weights 1/n
    rows: tuple[FeatureRow, ...]

    @property
    def overtakes(self) -> int | None:
        """The number of features from which the positive kind has a smaller error than ELU+1."""
        found = [row for row in self.rows if row.kind == "positive"]
        worse = [row.m for row in found if not row.weights < self.elu]
        better = [row.m for row in found if not worse or row.m > worse[-1]]
        return better[0] if better else None


def features(
    counts: Sequence[int] = FEATURES,
    *,
    d: int = 16,
    n: int = 64,
    size: float = 0.5,
    draws: int = 20,
    seed: int = 0,
) -> FeatureErrors:
    """Measure FAVOR+ for every kind and number of features, with `draws` independent draws.

    >>> found = features([64, 256], n=16, draws=4)
    >>> [row.m for row in found.rows if row.kind == "positive"]
    [64, 256]
    """
    who = "features"
    counts = wholes(who, "counts", counts)
    if any(m % 2 for m in counts):
        raise ValueError(f"{who} needs even numbers of features, not {list(counts)}")
    d, n, draws = whole(who, "d", d), whole(who, "n", n, 2), whole(who, "draws", draws)
    size, seed = positive(who, "size", size), whole(who, "seed", seed, 0)
    fits(who, n, n, d)
    fits(who, max(n, d), max(counts))
    q, k = size * np.random.default_rng([seed, d, n]).standard_normal((2, n, d))
    a, b = q * d**-0.25, k * d**-0.25
    scores = a @ b.T
    softmax = _normalized(np.exp(scores - scores.max(axis=1, keepdims=True)))
    limit = _weights_limit(a, b, softmax)
    rows = []
    for kind in KINDS:
        one = _relative_variance(a, b, kind)  # times m
        for m in counts:
            kernel, weights = _measured(a, b, scores, softmax, kind, m, draws, seed)
            known = math.sqrt(limit / m) if kind == "positive" else None
            rows.append(FeatureRow(kind, m, kernel, math.sqrt(one / m), weights, known))
    return FeatureErrors(
        d,
        n,
        size,
        draws,
        seed,
        mean_square=float(np.mean(_squares(a, b))),
        elu=_distance(np.asarray(attention_weights(q, k, "elu")), softmax),
        uniform=_distance(np.full((n, n), 1 / n), softmax),
        rows=tuple(rows),
    )


def _measured(
    a: Floats, b: Floats, scores: Floats, softmax: Floats, kind: str, m: int, draws: int, seed: int
) -> tuple[float, float]:
    """The errors of the kernel and of the weights, root mean squares over the draws."""
    kernel, weights = 0.0, 0.0
    for draw in range(draws):
        # The formulas are for independent ω. The seeds differ from those of the data.
        favor = maps.Favor(m, kind, seed=(seed + 1) * 10_000 + draw, orthogonal=False)
        (x, log_x), (y, log_y) = favor.phi_query(a), favor.phi_query(b)
        assert log_x is not None
        assert log_y is not None
        # φ(q)·φ(k)/e^{q·k}; exponents are added before taking the exponential.
        ratio = (x @ y.T) * np.exp(log_x[:, None] + log_y[None, :] - scores)
        kernel += float(np.mean((ratio - 1) ** 2))
        weights += _distance(_normalized(ratio * softmax), softmax) ** 2
    return math.sqrt(kernel / draws), math.sqrt(weights / draws)


def _relative_variance(a: Floats, b: Floats, kind: str) -> float:
    """The mean of m·Var[φ(q)·φ(k)]/e^{2q·k} over the pairs."""
    together, dot = _squares(a, b), a @ b.T
    if kind == "trig":
        apart = _squares(a, -b)
        return float(np.mean(np.exp(together - 4 * dot) * np.expm1(-apart) ** 2))
    found = np.expm1(together)
    if kind == "hyperbolic":
        found = found * -np.expm1(-together)
    return float(np.mean(found))


def _weights_limit(a: Floats, b: Floats, softmax: Floats) -> float:
    """m·E‖A − S‖²/‖S‖² for large m and the positive kind.

    The relative errors r_j of φ(q)·φ(k_j) have covariances G_jl/m, with
    G_jl = e^{(q+k_j)·(q+k_l)} − 1; for j = l this is the variance above. To first order the weight
    p_j becomes p_j(1 + r_j − Σp_l r_l), so its squared error is p_j²(G_jj − 2(Gp)_j + pᵀGp)/m.
    """
    total = 0.0
    for query, p in zip(a, softmax, strict=True):
        moved = query + b
        G = np.expm1(moved @ moved.T)
        Gp = G @ p
        total += float(np.sum(p**2 * (np.diagonal(G) - 2 * Gp + p @ Gp)))
    return total / float(np.sum(softmax**2))


def _squares(a: Floats, b: Floats) -> Floats:
    """‖aᵢ + bⱼ‖²."""
    return np.asarray(np.sum((a[:, None, :] + b[None, :, :]) ** 2, axis=-1))


def _normalized(weights: Floats) -> Floats:
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def _distance(weights: Floats, softmax: Floats) -> float:
    return float(np.linalg.norm(weights - softmax) / np.linalg.norm(softmax))
