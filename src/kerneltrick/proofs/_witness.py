"""Queries and keys that break a claim about the sign of a similarity."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np

from kerneltrick.proofs._evaluate import FLOATS, Scope, feature_list, scalar_value
from kerneltrick.proofs._interval import ALL, Interval
from kerneltrick.proofs._psd import is_dot
from kerneltrick.proofs._symbolic import Floats, Kernel, Phi
from kerneltrick.proofs._sympy import Expr, real, sympy, write
from kerneltrick.proofs._syntax import Node, largest_index, names

GRID = (-3, -2, -1, 0, 1, 2, 3)
RANDOM = 200
CONFIRMED = 60  # suspected breaches looked at in exact arithmetic, per dimension
Subject = Kernel | Phi


class Known(NamedTuple):
    """What is proven about the sign of a similarity, and how."""

    sign: str  # positive, non-negative, negative, non-positive or any
    why: str


class Witness(NamedTuple):
    """A query and keys with the sum of their similarities."""

    q: list[float]
    keys: list[list[float]]
    total: float

    def shown(self) -> dict[str, Any]:
        keys = {f"k{i + 1}" if len(self.keys) > 1 else "k": k for i, k in enumerate(self.keys)}
        return {"q": self.q, **keys, "sim" if len(keys) == 1 else "sum": self.total + 0.0}


def find_witness(
    subject: Subject, relation: str, known: Known, limits: dict[str, Interval]
) -> tuple[Witness, str] | None:
    """A query and keys that break the relation, and what happens there."""
    least = largest_index(subject.node)
    for d in range(least, max(4, least + 1)):
        q, k = _points(d)
        similarities = _similarities(subject, q, k, limits)
        found = _among(subject, similarities, q, k, relation, known, limits)
        if found is not None:
            return found
    return _root(subject, relation)


def _root(subject: Subject, relation: str) -> tuple[Witness, str] | None:
    """A zero of a polynomial in q·k that lies between the points of the grid."""
    if not isinstance(subject, Kernel) or subject.node is None or relation in (">=", "<="):
        return None
    t = real("t")
    expression = of_dot(subject.node, subject.text, t)
    if expression is None or expression.free_symbols != {t} or not expression.is_polynomial(t):
        return None
    roots = sympy.real_roots(sympy.Poly(expression, t))
    if not roots:
        return None
    text = write(roots[0])
    return Witness([1.0], [[float(roots[0])]], 0.0), f"it is 0 where q·k = {text}"


def _points(d: int) -> tuple[Floats, Floats]:
    """Queries and keys to try: small whole numbers first, the origin after them, then others."""
    grid = list(itertools.product(GRID, repeat=d))
    simple = sorted(grid, key=lambda x: (not any(x), sum(map(abs, x)), sum(y < 0 for y in x)))
    near = np.array([*simple[:60], (0,) * d], dtype=float)
    far = 2 * np.random.default_rng([d, *b"sign"]).standard_normal((RANDOM, d))
    return np.concatenate([near, far[:40]]), np.concatenate([near, far[40:]])


def _similarities(subject: Subject, q: Floats, k: Floats, limits: dict[str, Interval]) -> Floats:
    """sim of all pairs (n_q, n_k); letters with a sign are ±1, others 1."""
    with np.errstate(all="ignore"):
        if isinstance(subject, Phi):
            return np.asarray(subject.numeric(q) @ subject.numeric(k).T)
        left, right = np.repeat(q, len(k), axis=0), np.tile(k, (len(q), 1))
        if subject.node is None:
            values = subject.numeric(left, right)
        else:
            vectors = {"q": list(left.T), "k": list(right.T)}
            scope = Scope(subject.text, vectors, lambda name: _value(limits.get(name, ALL)),
                          FLOATS, float)  # fmt: skip
            values = np.broadcast_to(scalar_value(subject.node, scope), len(left))
    return np.asarray(values, dtype=np.float64).reshape(len(q), len(k))


def _value(limit: Interval) -> float:
    return -1.0 if limit.high <= 0 else 1.0


def _among(
    subject: Subject,
    sims: Floats,
    q: Floats,
    k: Floats,
    relation: str,
    known: Known,
    limits: dict[str, Interval],
) -> tuple[Witness, str] | None:
    """A breach among these similarities, confirmed exactly where the similarity is a text."""
    size = float(np.max(np.abs(np.where(np.isfinite(sims), sims, 0)), initial=1.0))
    small = 1e-9 * size
    suspects = {
        ">": sims <= small,
        "<": sims >= -small,
        ">=": sims < small,
        "<=": sims > -small,
        "!=": np.abs(sims) <= small,
    }[relation]
    proven = f"it is {known.sign}, but " if known.sign != "any" else ""
    for i, j in np.argwhere(suspects)[:CONFIRMED]:
        total = _exactly(subject, q[i], k[j], float(sims[i, j]), limits)
        if total is not None and _breaks(total, relation):
            what = "0 is reached" if total == 0 else f"it is {_side(total)} here"
            return Witness(q[i].tolist(), [k[j].tolist()], total), proven + what
    return _cancelling(subject, sims, q, k, limits) if relation == "!=" else None


def _breaks(total: float, relation: str) -> bool:
    return {
        ">": total <= 0,
        "<": total >= 0,
        ">=": total < 0,
        "<=": total > 0,
        "!=": total == 0,
    }[relation]


def _exactly(
    subject: Subject, q: Floats, k: Floats, rounded: float, limits: dict[str, Interval]
) -> float | None:
    """sim(q, k) in exact arithmetic, 0 only if it is 0; None if that cannot be told."""
    if subject.node is None:
        return rounded if math.isfinite(rounded) else None
    at_q, at_k = ([sympy.Rational(*float(x).as_integer_ratio()) for x in p] for p in (q, k))

    def letter(name: str) -> Expr:
        return sympy.Integer(int(_value(limits.get(name, ALL))))

    if isinstance(subject, Phi):
        features = (
            feature_list(subject.node, Scope(subject.text, {"x": x}, letter)) for x in (at_q, at_k)
        )
        value = sum((a * b for a, b in zip(*features, strict=True)), sympy.Integer(0))
    else:
        value = scalar_value(subject.node, Scope(subject.text, {"q": at_q, "k": at_k}, letter))
    if value.is_zero or sympy.simplify(value) == 0:
        return 0.0
    number = sympy.N(value, 30)
    if not number.is_real or not number.is_finite or abs(number) < sympy.Float(10) ** -25:
        return None
    return float(number)


def _cancelling(
    subject: Subject, sims: Floats, q: Floats, k: Floats, limits: dict[str, Interval]
) -> tuple[Witness, str] | None:
    """Two keys whose similarities cancel, or have opposite signs."""
    for i, row in enumerate(sims):
        finite = np.where(np.isfinite(row), row, 0)
        low, high = int(finite.argmin()), int(finite.argmax())
        if finite[low] < -1e-9 and finite[high] > 1e-9:
            matches = np.argwhere(finite[:, None] + finite[None, :] == 0)
            both = [(int(a), int(b)) for a, b in matches if finite[a] < 0]
            a, b = both[0] if both else (low, high)
            first, second = (
                _exactly(subject, q[i], k[j], float(finite[j]), limits) for j in (a, b)
            )
            if first is None or second is None or first * second >= 0:
                continue
            total = float(finite[a] + finite[b])
            if total != 0 and not _continuous(subject):
                continue
            keys = [k[a].tolist(), k[b].tolist()]
            why = "it has both signs; between two such keys lies one with sum 0"
            if total == 0:
                why = "similarities of both signs cancel"
            return Witness(q[i].tolist(), keys, total), why
    return None


def _inverse(node: Node) -> bool:
    power = node.parts[1].value if node.kind == "op" and node.value == "**" else Fraction(0)
    return isinstance(power, Fraction) and power < 0


def _continuous(subject: Subject) -> bool:
    """Whether between values of both signs lies a 0: known of maps, and of texts that divide by
    numbers only."""

    def divides(node: Node) -> bool:
        bottom = node.kind == "op" and node.value == "/" and bool(names(node.parts[1]))
        return bottom or _inverse(node) or any(divides(part) for part in node.parts)

    if isinstance(subject, Phi) and subject.map is not None:
        return True
    return subject.node is not None and not divides(subject.node)


def _side(x: float) -> str:
    return "negative" if x < 0 else "positive"


def of_dot(node: Node, text: str, t: Expr) -> Expr | None:
    """The expression as a function of t = q·k, if q and k occur in no other way."""

    def only_dots(part: Node) -> bool:
        if is_dot(part):
            return True
        if part.kind in ("name", "index") and part.value in ("q", "k"):
            return False
        return all(only_dots(x) for x in part.parts)

    if not only_dots(node) or names(node) & {"x", "y", "w"}:
        return None
    vectors = {"q": [t], "k": [sympy.Integer(1)]}
    return sympy.expand(scalar_value(node, Scope(text, vectors, real)))
