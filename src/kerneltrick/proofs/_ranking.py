"""Measure which map comes closer to softmax on the data of lab 03."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import re
from collections.abc import Sequence

import numpy as np

from kerneltrick import maps
from kerneltrick.proofs._symbolic import Floats
from kerneltrick.proofs._syntax import ClaimError
from kerneltrick.proofs._verdict import Computation, Verdict

N, D, SEEDS = 100, 64, 12
CLEAR = 4.0  # |z| of a paired difference that counts
DATA = "the claim is about this data and says nothing about other data"


def check_ranking(order: Sequence[str], *, scale: float | None = None) -> Verdict:
    """Decide whether the weights of each map have a lower MSE to softmax than those of the next.

    The data is that of lab 03: Q and K are 100×64 with independent N(0, 1) entries. Differences
    are paired over seeds. A random map is drawn again for each seed unless its text names a seed.
    `scale` is the scale of softmax. It defaults to 1/√d.

    >>> check_ranking(["relu", "elu"]).status
    'true'
    """
    if len(order) < 2:
        raise ValueError("a ranking needs at least two maps")
    softmax_scale = 1 / math.sqrt(D) if scale is None else scale
    errors = {text: _errors(text, softmax_scale) for text in order}
    claim = " beats ".join(order)
    shown = tuple(f"{text}: MSE {1e4 * e.mean():.3g}·10⁻⁴" for text, e in errors.items())
    facts = {text: float(e.mean()) for text, e in errors.items()}
    where = f"on {N}×{D} Gaussian data, {SEEDS} seeds, softmax scale {softmax_scale:.3g}"
    for text, e in errors.items():
        if not np.isfinite(e).all():
            missing = f"the weights of {text} are not finite, {where}"
            return Verdict.undecided(claim, missing, shown, basis="measurement")
    lowest = math.inf
    for better, worse in itertools.pairwise(order):
        gap = errors[worse] - errors[better]
        z = float(gap.mean() / max(gap.std(ddof=1) / math.sqrt(SEEDS), 1e-300))
        lowest = min(lowest, z)
        if z <= -CLEAR:
            reason = f"{worse} is closer to softmax than {better} (z = {-z:.1f}), {where}"
            return Verdict.false(claim, Computation(reason, (DATA,)), shown, facts)
    if lowest < CLEAR:
        missing = f"the difference is not clear (z = {lowest:.1f}), {where}"
        return Verdict.undecided(claim, missing, shown, facts, "measurement")
    reason = f"measured {where}; smallest z = {lowest:.1f}"
    return Verdict.true(claim, Computation(reason, (DATA,)), shown, facts)


def read_ranking(text: str) -> Verdict:
    """ "relu beats elu"."""
    order = [x.strip() for x in re.split(r"\s+beats\s+", text.strip())]
    if len(order) < 2 or not all(order):
        raise ClaimError(text, len(text), "expected a claim such as 'relu beats elu'")
    return check_ranking(order)


@functools.cache
def _errors(text: str, softmax_scale: float) -> Floats:
    found = []
    for seed in range(SEEDS):
        q, k, _ = np.random.default_rng([3, seed]).standard_normal((3, N, D))
        scores = softmax_scale * q @ k.T
        weights = _rows(np.exp(scores - scores.max(axis=1, keepdims=True)))
        own = weights
        if not isinstance(maps.get(text), maps.Softmax):
            with np.errstate(all="ignore"):  # weights that are not finite are reported
                own = _weights(text, seed, q, k, softmax_scale)
        found.append(np.mean((own - weights) ** 2))
    return np.array(found)


def _weights(text: str, seed: int, q: Floats, k: Floats, softmax_scale: float) -> Floats:
    feature_map = maps.get(text)
    root = math.sqrt(softmax_scale) if feature_map.approximates_softmax else 1.0
    if not isinstance(feature_map, maps.Favor):  # in closed form, however many features there are
        return _rows(np.asarray(feature_map.kernel(root * q, root * k)))
    if not re.search(r"\bseed\s*=", text):
        feature_map = dataclasses.replace(feature_map, seed=seed)
    return _rows(np.asarray(feature_map.phi(root * q)) @ np.asarray(feature_map.phi(root * k)).T)


def _rows(weights: Floats) -> Floats:
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))
