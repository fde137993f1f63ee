"""Random feature maps: unbiasedness and variance over seeds, with z-scores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick import maps
from kerneltrick.proofs._symbolic import Floats, Kernel, PhiLike
from kerneltrick.proofs._verdict import Verdict

SEEDS = 2000
PAIRS = 4
HOLDS, BREAKS = 4.0, 6.0  # |z| below which a law is accepted, and above which it is refuted


def check_random_map(claim: str, phi: PhiLike, kernel: Kernel, d: int) -> Verdict:
    """Whether E[φ(q)·φ(k)] is the kernel, and for FAVOR+ whether the variance is the theory's.

    With |z| < 4 in all tests the claim stands (a false alarm has a chance below 0.1 %), above 6 it
    falls, between the verdict is "undecided".
    """
    rng = np.random.default_rng([d, *b"pairs"])
    q, k = 0.6 * rng.standard_normal((2, PAIRS, d)) / math.sqrt(d)
    draw = _drawer(phi)
    values = np.array([(draw(seed, q) * draw(seed, k)).sum(axis=1) for seed in range(SEEDS)])
    wanted = kernel.numeric(q, k)
    mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1)
    spread = np.where(deviation > 0, deviation, 1e-300)
    z = (mean - wanted) / (spread / math.sqrt(SEEDS))
    worst = int(np.abs(z).argmax())
    details = [
        f"mean over {SEEDS} seeds {mean[i]:.5f}, kernel {wanted[i]:.5f}, z = {z[i]:+.1f}"
        for i in range(PAIRS)
    ]
    scores = [float(np.abs(z).max())]
    theory = _variance(maps.get(phi), q, k) if isinstance(phi, str | maps.FeatureMap) else None
    if theory is not None:
        variance, z_variance = _variance_scores(values, theory)
        scores.append(float(np.abs(z_variance).max()))
        details += [
            f"variance {variance[i]:.3e}, theory {theory[i]:.3e}, z = {z_variance[i]:+.1f}"
            for i in range(PAIRS)
        ]
    facts = {"d": d, "seeds": SEEDS, "z": scores}
    if max(scores) > BREAKS:
        biased = scores[0] > BREAKS
        what = "the mean is not the kernel" if biased else "the variance is not the theory's"
        point = {"q": q[worst].tolist(), "k": k[worst].tolist(), "mean": float(mean[worst]),
                 "kernel": float(wanted[worst])}  # fmt: skip
        reason = f"{what}: |z| = {max(scores):.1f} over {SEEDS} seeds (d = {d})"
        return Verdict("false", claim, reason, tuple(details), point, "measurement", facts)
    if max(scores) >= HOLDS:
        reason = f"|z| = {max(scores):.1f} over {SEEDS} seeds is neither small nor large"
        return Verdict("undecided", claim, reason, tuple(details), None, "measurement", facts)
    reason = (
        f"on average over {SEEDS} seeds (d = {d}): every |z| ≤ {max(scores):.1f}; a measurement, "
        "not a proof"
    )
    return Verdict("true", claim, reason, tuple(details), None, "measurement", facts)


def _drawer(phi: PhiLike) -> Callable[[int, Floats], Floats]:
    if isinstance(phi, str | maps.FeatureMap):
        feature_map: Any = maps.get(phi)
        return lambda seed, x: np.asarray(dataclasses.replace(feature_map, seed=seed).phi(x))
    return lambda seed, x: np.asarray(phi(x, seed=seed))


def _variance(feature_map: maps.FeatureMap, q: Floats, k: Floats) -> Floats | None:
    """The exact variance of independent draws; None where no closed form is known."""
    if not isinstance(feature_map, maps.Favor) or feature_map.orthogonal:
        return None
    m, dot = feature_map.features, (q * k).sum(axis=1)
    plus, minus = ((q + k) ** 2).sum(axis=1), ((q - k) ** 2).sum(axis=1)
    positive: Floats = np.exp(2 * dot) * np.expm1(plus) / m
    if feature_map.kind == "positive":
        return positive
    if feature_map.kind == "hyperbolic":
        hyperbolic: Floats = positive * -np.expm1(-plus)
        return hyperbolic
    trig: Floats = np.exp(plus - 2 * dot) * np.expm1(-minus) ** 2 / m
    return trig


def _variance_scores(values: Floats, theory: Floats) -> tuple[Floats, Floats]:
    centred = values - values.mean(axis=0)
    variance = (centred**2).sum(axis=0) / (len(values) - 1)
    fourth = (centred**4).mean(axis=0)
    error = np.sqrt(np.maximum(fourth - variance**2, 1e-300) / len(values))
    return variance, (variance - theory) / error
