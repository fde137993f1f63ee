"""Check that random feature maps are unbiased, and their variance over seeds, with z-scores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kerneltrick import maps
from kerneltrick.proofs._derive import assumptions
from kerneltrick.proofs._search import FoundValues
from kerneltrick.proofs._statement import Statement, breaks
from kerneltrick.proofs._symbolic import Floats, Kernel, PhiLike
from kerneltrick.proofs._verdict import Counterexample, Derivation, Verdict

SEEDS = 2000
PAIRS = 4
CLEAR = 6.0  # a larger |z| contradicts the theory


class _Sample(NamedTuple):
    """Means over seeds, and variances if the theory predicts them, with their z-scores."""

    details: tuple[str, ...]
    mean_z: float
    variance_z: float

    @property
    def facts(self) -> dict[str, Any]:
        return {"seeds": SEEDS, "z": [self.mean_z, self.variance_z]}


def check_favor(
    claim: str,
    feature_map: maps.Favor,
    kernel: Kernel,
    statement: Statement,
    found: Derivation | FoundValues | str,
    why: str,
) -> Verdict:
    """Decide whether the mean of φ(q)·φ(k) over draws is the kernel, by a theorem.

    Draws of the actual code are compared with the theorem. If they contradict it (|z| > 6), the
    code does not do what the theorem is about, and the claim stays undecided.
    """
    if isinstance(found, str):
        return Verdict.undecided(claim, found)
    if isinstance(found, FoundValues):
        values = {**found.shown(statement), **found.sides("mean", "kernel")}
        example = Counterexample(
            f"the mean is not the kernel: {why}",
            values,
            lambda: breaks(statement, found.d, found.point) is not None,
            assumptions(statement),
        )
        return Verdict.false(claim, example, facts={"d": found.d})
    sample = _sample(feature_map, Kernel(feature_map), statement.d or 3)
    if max(sample.mean_z, sample.variance_z) > CLEAR:
        what = "mean" if sample.mean_z > CLEAR else "variance"
        missing = (
            f"the {what} over {SEEDS} seeds contradicts the theory: the code draws something else"
        )
        return Verdict.undecided(claim, missing, sample.details, sample.facts, "measurement")
    reason = found.reason.replace("both sides", "that mean and the kernel")
    derived = Derivation(f"on average: {why}; {reason}", found.assumptions)
    return Verdict.true(claim, derived, sample.details, sample.facts)


def check_drawn_function(claim: str, phi: PhiLike, kernel: Kernel, d: int) -> Verdict:
    """Compare the mean of a function over seeds with the kernel. This decides nothing."""
    sample = _sample(phi, kernel, d)
    seen = "the mean is not the kernel" if sample.mean_z > CLEAR else "the mean is near the kernel"
    missing = (
        f"{seen}: |z| = {sample.mean_z:.1f} over {SEEDS} seeds (d = {d}); this is a measurement, "
        "not a proof"
    )
    return Verdict.undecided(claim, missing, sample.details, sample.facts, "measurement")


def _sample(phi: PhiLike, kernel: Kernel, d: int) -> _Sample:
    rng = np.random.default_rng([d, *b"pairs"])
    q, k = 0.6 * rng.standard_normal((2, PAIRS, d)) / math.sqrt(d)
    draw = _drawer(phi)
    values = np.array([(draw(seed, q) * draw(seed, k)).sum(axis=1) for seed in range(SEEDS)])
    wanted = kernel.numeric(q, k)
    mean, deviation = values.mean(axis=0), values.std(axis=0, ddof=1)
    spread = np.where(deviation > 0, deviation, 1e-300)
    z = (mean - wanted) / (spread / math.sqrt(SEEDS))
    details = [
        f"mean over {SEEDS} seeds {mean[i]:.5f}, kernel {wanted[i]:.5f}, z = {z[i]:+.1f}"
        for i in range(PAIRS)
    ]
    variance_z = 0.0
    theory = _variance(phi, q, k) if isinstance(phi, maps.Favor) else None
    if theory is not None:
        variance, scores = _variance_scores(values, theory)
        variance_z = float(np.abs(scores).max())
        details += [
            f"variance {variance[i]:.3e}, theory {theory[i]:.3e}, z = {scores[i]:+.1f}"
            for i in range(PAIRS)
        ]
    return _Sample(tuple(details), float(np.abs(z).max()), variance_z)


def _drawer(phi: PhiLike) -> Callable[[int, Floats], Floats]:
    if isinstance(phi, str | maps.FeatureMap):
        feature_map: Any = maps.get(phi)
        return lambda seed, x: np.asarray(dataclasses.replace(feature_map, seed=seed).phi(x))
    return lambda seed, x: np.asarray(phi(x, seed=seed))


def _variance(feature_map: maps.Favor, q: Floats, k: Floats) -> Floats | None:
    """The exact variance of independent draws; None if no closed form is known."""
    if feature_map.orthogonal:
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
