"""Find queries and keys that break a claim about the sign of a similarity."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from kerneltrick import maps
from kerneltrick.proofs._black_box import RETURNED, ROUNDING
from kerneltrick.proofs._derive import assumptions
from kerneltrick.proofs._number import EXACTLY, Number, exactly
from kerneltrick.proofs._search import plain, points
from kerneltrick.proofs._statement import Statement, sides_at, speaks_of
from kerneltrick.proofs._symbolic import Floats, Kernel, Phi
from kerneltrick.proofs._syntax import Node, has_gaps, names
from kerneltrick.proofs._verdict import Counterexample

MOST_KEYS = 30
TRIES = 60
GRID = range(-3, 4)


def sum_witness(statement: Statement, widths: Sequence[int]) -> Counterexample | None:
    """Find keys whose similarities to one query cancel, exactly or by continuity."""
    for d in widths:
        for point in points(statement, d, TRIES):
            if "k" not in point or "q" not in point:
                return None
            found = _cancelling(statement, d, point)
            if found is not None:
                return found
    return None


def _cancelling(statement: Statement, d: int, point: dict[str, Any]) -> Counterexample | None:
    """Try this key, its opposite and a few others until two have different signs."""
    keys = [point["k"], [-x for x in point["k"]], [2 * x for x in point["k"]], [Fraction(0)] * d]
    keys += [[-2 * x for x in point["k"]], [Fraction(1)] + [Fraction(0)] * (d - 1)]
    signed = list[tuple[list[Fraction], int, Number]]()
    for key in keys:
        value = _similarity(statement, d, {**point, "k": key})
        if value is not None:
            signed.append((key, *value))
    for (down, a, x), (up, b, y) in itertools.permutations(signed, 2):
        if not a < 0 < b:
            continue
        if x.exact and y.exact:
            ratio = -x.value / y.value
            n_up, n_down = ratio.numerator, ratio.denominator
            if n_up + n_down <= MOST_KEYS:
                return _sum(statement, d, point, [down] * n_down + [up] * n_up)
        if _path(statement):
            return _between(statement, d, point, down, up)
    return None


def _similarity(statement: Statement, d: int, point: dict[str, Any]) -> tuple[int, Number] | None:
    """The sign and the value at a key; None if the key does not meet all conditions."""
    if not speaks_of(statement, d, point):
        return None
    return exactly(lambda: sides_at(statement, d, point)[0])


def _sum(
    statement: Statement, d: int, point: dict[str, Any], keys: list[list[Fraction]]
) -> Counterexample:
    def vanishes() -> bool:
        values = [_similarity(statement, d, {**point, "k": key}) for key in keys]
        return all(v is not None and v[1].exact for v in values) and (
            sum((v[1].value for v in values if v is not None), Fraction(0)) == 0
        )

    shown = {"q": [plain(x) for x in point["q"]]}
    shown |= {f"k{i + 1}": [plain(x) for x in key] for i, key in enumerate(keys)}
    others = {name: plain(x) for name, x in point.items() if name not in ("q", "k")}
    reason = "similarities of both signs cancel"
    return Counterexample(reason, {**shown, **others, "sum": 0}, vanishes, assumptions(statement))


def _between(
    statement: Statement,
    d: int,
    point: dict[str, Any],
    down: list[Fraction],
    up: list[Fraction],
) -> Counterexample:
    def both_signs() -> bool:
        found = [_similarity(statement, d, {**point, "k": key}) for key in (down, up)]
        return _path(statement) and all(
            v is not None and v[0] == sign for v, sign in zip(found, (-1, 1), strict=True)
        )

    shown = {
        "q": [plain(x) for x in point["q"]],
        "k1": [plain(x) for x in down],
        "k2": [plain(x) for x in up],
    }
    others = {name: plain(x) for name, x in point.items() if name not in ("q", "k")}
    reason = "it is continuous and takes both signs, so it is 0 at a key between these two"
    return Counterexample(reason, {**shown, **others}, both_signs, assumptions(statement))


def _path(statement: Statement) -> bool:
    """Whether a similarity is continuous on the way from any key to another."""
    return not statement.conditions and continuous(statement.left)


def continuous(node: Node) -> bool:
    """Whether an expression is continuous and defined everywhere, judged by its functions."""
    if node.kind == "call" and node.value in ("log", "sqrt", "norm", "cosine", "C", "factorial"):
        return not names(node)
    return not has_gaps(node) and all(continuous(part) for part in node.parts)


def function_witness(kernel: Kernel, relation: str) -> Counterexample | None:
    """Find a point where a function returns a number of the wrong sign, beyond rounding."""
    grid = np.array(list(itertools.product(GRID, repeat=2)), dtype=float)
    for q, k in itertools.product(grid, repeat=2):
        with np.errstate(all="ignore"):
            value = float(kernel.numeric(q[None], k[None])[0])
        if _wrong(value, relation):
            shown = {"q": q.tolist(), "k": k.tolist(), "sim": value}

            def breaks(q: Floats = q, k: Floats = k) -> bool:
                return _wrong(float(kernel.numeric(q[None], k[None])[0]), relation)

            word = "negative" if value < 0 else "positive" if value > 0 else "0"
            return Counterexample(f"it is {word} here", shown, breaks, (RETURNED,))
    return None


def _wrong(value: float, relation: str) -> bool:
    if relation in (">", ">="):
        return value < -ROUNDING
    return value > ROUNDING if relation in ("<", "<=") else value == 0


def drawn_witness(feature_map: maps.Favor, relation: str) -> Counterexample | None:
    """Find q and k for which the random features of this seed give the wrong sign.

    For trigonometric features, φ(q)·φ(k) is a positive factor times Σ cos ω·(q − k), where the
    draws ω are known numbers.
    """
    draws = [[Fraction(float(x)) for x in row] for row in feature_map.projection(1)]

    def total(z: Fraction) -> tuple[int, Number] | None:
        def value() -> Number:
            found = Number(0)
            for (w,) in draws:
                found = found + EXACTLY["cos"](Number(w * z))
            return found

        return exactly(value)

    if feature_map.kind != "trig":
        if relation not in ("<", "<="):
            return None
        point = {"q": [0], "k": [0], "sim": 1}
        return Counterexample("it is positive here", point, lambda: True, ())
    wanted = 1 if relation in ("<", "<=") else -1
    for z in (Fraction(i, 4) for i in range(400)):
        found = total(z)
        if found is not None and found[0] == wanted:
            word = "negative" if wanted < 0 else "positive"
            reason = f"it is {word} here"
            if relation == "!=":  # it is continuous, and positive at z = 0
                reason += " and positive for q = k, so it is 0 at a key in between"
            shown = {"q": [float(z)], "k": [0.0], "Σ cos ω·(q − k)": float(found[1])}

            def breaks(z: Fraction = z) -> bool:
                again = total(z)
                return again is not None and again[0] == wanted

            return Counterexample(
                reason, shown, breaks, (f"the draws are those of {feature_map} for d = 1",)
            )
    return None


def zero_features(phi: Phi, relation: str) -> Counterexample | None:
    """Find a query whose features are all exactly 0, for maps that end in a ReLU."""
    if relation in (">=", "<="):
        return None
    for x in ([[0.0]], [[-1.0]], [[0.0, 0.0]], [[-1.0, -1.0]]):
        try:
            features = phi.numeric(np.array(x))
        except ValueError:  # a map with weights for another width
            continue
        if features.size and not features.any():
            shown = {"q": x[0], "k": x[0], "sim": 0}

            def breaks(x: list[list[float]] = x) -> bool:
                return not phi.numeric(np.array(x)).any()

            return Counterexample(
                "0 is reached: every feature of q is 0", shown, breaks, (RETURNED,)
            )
    return None
