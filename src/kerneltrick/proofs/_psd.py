"""Decide whether a kernel is positive semi-definite, a property of its Gram matrices."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

import numpy as np

from kerneltrick.proofs._black_box import RETURNED, ROUNDING
from kerneltrick.proofs._derive import assumptions, setting, span
from kerneltrick.proofs._evaluate import Scope, evaluate
from kerneltrick.proofs._identity import decide_equation
from kerneltrick.proofs._kernel_rules import proof
from kerneltrick.proofs._number import EXACTLY, Number, exactly
from kerneltrick.proofs._search import NOTHING, FoundValues, dimensions, speaks_of_something
from kerneltrick.proofs._statement import Statement, breaks
from kerneltrick.proofs._symbolic import Floats, Kernel, KernelLike
from kerneltrick.proofs._syntax import ClaimError, names, place, renamed
from kerneltrick.proofs._verdict import Counterexample, Derivation, Verdict

SETS = 400  # random sets of points per dimension
SUSPICIOUS = 1e-13  # relative to the matrix: smaller eigenvalues are rounding errors
CONFIRMED = 6  # suspicious Gram matrices that are checked exactly in each dimension
LARGEST_WIDTH = 8


def check_psd(kernel: KernelLike, d: int | None = None) -> Verdict:
    """Decide whether every Gram matrix K_ij = k(x_i, x_j) is symmetric with eigenvalues ≥ 0.

    The claim is proven if the kernel is built from q·k and distances by sums, products, power
    series, functions of distances (Schoenberg) and factors f(q)f(k), or if the coefficients of its
    normal form are positive semi-definite. It is refuted by
    points and weights with Σ wᵢwⱼK_ij < 0 in exact arithmetic. Otherwise it is undecided. Points
    have every dimension, or `d` if it is given.

    >>> print(check_psd("elu(q·k) + 1"))
    FALSE: elu(q·k) + 1 is positive semi-definite
      the Gram matrix of 4 points (d = 1) has the eigenvalue -0.0114: Σ wᵢwⱼK_ij < 0
      counterexample: points = ((-2), (-1), (1), (2)), eigenvalue = -0.0114101, w = (7/20, -61/100,
        61/100, -7/20)
      assumed: all numbers are real; d is a whole number ≥ 1
    """
    wanted = Kernel(kernel)
    claim = f"{wanted.text} is positive semi-definite" + ("" if d is None else f" for d = {d}")
    if wanted.map is not None:
        if wanted.map.for_keys is not wanted.map:
            return Verdict.undecided(claim, "its keys have other features than its queries")
        reason = "its Gram matrix is ΦΦᵀ, where Φ holds the features"
        if not wanted.map.has_features:
            reason = "it is e^{q·k}, and exp has a power series with coefficients ≥ 0"
        return Verdict.true(claim, Derivation(reason))
    if wanted.node is None:
        return _of_function(claim, wanted, (1, 2, 3) if d is None else (d,))
    _check_names(wanted)
    swapped = renamed(renamed(renamed(wanted.node, "q", "_"), "k", "q"), "_", "k")
    symmetry = Statement(wanted.text, wanted.node, "=", swapped, (), d)
    found = decide_equation(symmetry)
    if isinstance(found, FoundValues):
        return _asymmetric(claim, symmetry, found)
    if not speaks_of_something(symmetry):
        return Verdict.undecided(claim, NOTHING)
    derived = _derived(wanted, symmetry)
    if derived is not None:
        return Verdict.true(claim, derived)
    widths = [x for x in dimensions(symmetry) if x <= LARGEST_WIDTH]
    for width in widths:
        negative = _negative(wanted, width)
        if negative is not None:
            return Verdict.false(claim, _counterexample(wanted, width, negative, symmetry))
    return Verdict.undecided(
        claim,
        f"no negative eigenvalue in {(SETS + 4) * len(widths)} Gram matrices "
        f"(d = {', '.join(map(str, widths))}), and no rule proves that there is none",
    )


def _check_names(kernel: Kernel) -> None:
    assert kernel.node is not None
    for name in sorted(names(kernel.node) & {"x", "y", "w"}):
        at = place(kernel.node, name)
        raise ClaimError(kernel.text, at, f"a kernel is a function of q and k, not of {name}")
    for name in sorted(kernel.parameters):
        raise ValueError(f"{name} has no value: write a number instead")


def _asymmetric(claim: str, symmetry: Statement, found: FoundValues) -> Verdict:
    values = {**found.shown(symmetry), **found.sides("k(q, k)", "k(k, q)")}
    example = Counterexample(
        "it is not symmetric: k(q, k) ≠ k(k, q)",
        values,
        lambda: breaks(symmetry, found.d, found.point) is not None,
        assumptions(symmetry),
    )
    return Verdict.false(claim, example)


def _derived(kernel: Kernel, symmetry: Statement) -> Derivation | None:
    """A proof from rules or from the coefficients of the normal form."""
    assert kernel.node is not None
    given = setting(symmetry)
    covered = f" ({span(symmetry, given)})"
    steps = proof(kernel.node, given.space)
    return None if steps is None else Derivation("; ".join(steps) + covered, assumptions(symmetry))


class _Negative(NamedTuple):
    """Points and weights with Σ wᵢwⱼK_ij < 0."""

    points: list[list[Fraction]]
    weights: list[Fraction]
    eigenvalue: float


def _counterexample(
    kernel: Kernel, d: int, found: _Negative, symmetry: Statement
) -> Counterexample:
    count = len(found.points)
    word = "point" if count == 1 else f"{count} points"
    reason = (
        f"the Gram matrix of {word} (d = {d}) has the eigenvalue {found.eigenvalue:.3g}: "
        "Σ wᵢwⱼK_ij < 0"
    )
    values = {
        "points": [[float(x) for x in p] for p in found.points],
        "eigenvalue": found.eigenvalue,
        "w": [str(w) for w in found.weights],
    }
    return Counterexample(
        reason,
        values,
        lambda: _is_negative(kernel, found.points, found.weights),
        assumptions(symmetry),
    )


def _is_negative(kernel: Kernel, points: list[list[Fraction]], weights: list[Fraction]) -> bool:
    """Whether Σ wᵢwⱼ·k(xᵢ, xⱼ) < 0 in exact arithmetic. The kernel is symmetric."""
    assert kernel.node is not None
    node, d = kernel.node, len(points[0])

    def value(q: list[Fraction], k: list[Fraction]) -> Number:
        vectors = {"q": [Number(x) for x in q], "k": [Number(x) for x in k]}
        scope = Scope(
            kernel.text, vectors, lambda _: Number(d), EXACTLY, Number, lambda x, p: x**p, d
        )
        found = evaluate(node, scope)
        assert isinstance(found, Number)
        return found

    def form() -> Number:
        total = Number(0)
        for (x, u), (y, v) in itertools.product(zip(points, weights, strict=True), repeat=2):
            total = total + Number(u * v) * value(x, y)
        return total

    found = exactly(form)
    return found is not None and found[0] < 0


def _negative(kernel: Kernel, d: int) -> _Negative | None:
    """Find points whose Gram matrix has a negative eigenvalue, first in floats, then exactly."""
    looked = 0
    for points in _point_sets(d):
        with np.errstate(all="ignore"):
            gram = kernel.gram(points)
        if not np.isfinite(gram).all() or _lowest(gram, SUSPICIOUS) is None:
            continue
        kept = _fewest(gram)
        for digits in (1, 2, 4, 8):
            part, size = _symmetric(gram[np.ix_(kept, kept)])
            values, vectors = np.linalg.eigh(part)
            scale = 10**digits
            weights = [Fraction(round(float(x) * scale), scale) for x in vectors[:, 0]]
            if next((w for w in weights if w), 0) < 0:
                weights = [-w for w in weights]
            exact = [[Fraction(float(x)) for x in points[i]] for i in kept]
            if any(weights) and _is_negative(kernel, exact, weights):
                return _Negative(exact, weights, float(values[0]) * size)
        looked += 1
        if looked == CONFIRMED:
            return None
    return None


def _lowest(gram: Floats, tolerance: float) -> float | None:
    """The lowest eigenvalue, if it is below −tolerance relative to the matrix."""
    matrix, size = _symmetric(gram)
    value = float(np.linalg.eigvalsh(matrix)[0])
    return value * size if value < -tolerance * float(np.abs(matrix).sum()) else None


def _symmetric(gram: Floats) -> tuple[Floats, float]:
    """(K + Kᵀ)/2 divided by a power of two near its largest entry, and that power.

    Without the division, entries near the largest float overflow in sums and in the eigenvalues.
    """
    largest = float(np.abs(gram).max())
    size = 2.0 ** min(max(math.frexp(largest)[1], -1000), 1000)
    scaled = gram / size
    return (scaled + scaled.T) / 2, size


def _fewest(gram: Floats) -> list[int]:
    """Remove points as long as the Gram matrix keeps a negative eigenvalue."""
    kept = list(range(len(gram)))
    for i in range(len(gram)):
        fewer = [j for j in kept if j != i]
        if fewer and _lowest(gram[np.ix_(fewer, fewer)], 1e-9) is not None:
            kept = fewer
    return kept


def _point_sets(d: int) -> Iterator[Floats]:
    """Sets of points: small whole numbers first, then random points of many sizes."""
    grid = [np.array(x, dtype=float) for x in itertools.product((-2, -1, 1, 2), repeat=min(d, 3))]
    grid = [np.concatenate([x, np.ones(d - len(x))]) for x in grid]
    for count in (1, 2, 4, min(len(grid), 64)):
        yield np.array(grid[:count])
    rng = np.random.default_rng([d, *b"gram"])
    for i in range(SETS):
        n = 2 + i % 9
        size = (0.1, 0.5, 1.0, 2.0, 4.0, 40.0)[i % 6]
        if i % 2:
            yield np.round(size * rng.standard_normal((n, d)), 2)
        else:
            yield rng.integers(-3, 4, (n, d)).astype(float)


def _of_function(claim: str, kernel: Kernel, widths: tuple[int, ...]) -> Verdict:
    """Judge a function by the numbers it returns: refuted or undecided."""
    for d in widths:
        for points in _point_sets(d):
            with np.errstate(all="ignore"):
                gram = kernel.gram(points)
            if np.isfinite(gram).all() and _broken(gram):
                return Verdict.false(claim, _returned(kernel, points, d, gram))
    missing = "no negative eigenvalue in the Gram matrices tried; a function cannot be analysed"
    return Verdict.undecided(claim, missing, basis="measurement")


def _broken(gram: Floats) -> bool:
    skew = np.abs(gram - gram.T).max() > ROUNDING * np.abs(gram).max()
    return bool(skew) or _lowest(gram, ROUNDING) is not None


def _returned(kernel: Kernel, points: Floats, d: int, gram: Floats) -> Counterexample:
    lowest = _lowest(gram, ROUNDING)
    values: dict[str, object] = {"points": points.tolist()}
    if lowest is not None:
        kept = _fewest(gram)
        lowest = _lowest(gram[np.ix_(kept, kept)], 0.0)
        points = points[kept]
        values = {"points": points.tolist(), "eigenvalue": lowest}
    what = "is not symmetric" if lowest is None else f"has the eigenvalue {lowest:.3g}"
    return Counterexample(
        f"the Gram matrix of {len(points)} points (d = {d}) {what}",
        values,
        lambda: _broken(kernel.gram(points)),
        (RETURNED,),
    )
