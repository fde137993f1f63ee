"""Bound the values that an expression can take by intervals with open or closed ends.

Ends are fractions or infinite. An irrational end is rounded outwards and counts as open, so that an
interval always contains all values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from kerneltrick.proofs._number import EXACTLY, Number, UndefinedError
from kerneltrick.proofs._sympy import iv
from kerneltrick.proofs._syntax import Node

INFINITY = math.inf
End = float | Fraction  # a fraction, or ±∞


class Interval(NamedTuple):
    """All numbers from low to high. An open end is never reached."""

    low: End
    high: End
    low_open: bool = True
    high_open: bool = True

    @property
    def positive(self) -> bool:
        """Whether every value is > 0."""
        return self.low > 0 or (self.low == 0 and self.low_open)

    @property
    def negative(self) -> bool:
        return self.high < 0 or (self.high == 0 and self.high_open)

    @property
    def empty(self) -> bool:
        """Whether it contains no number. The rules below need intervals that are not empty."""
        is_open = self.low_open or self.high_open
        return self.low > self.high or (self.low == self.high and is_open)

    def __str__(self) -> str:
        low, high = (_end(x) for x in (self.low, self.high))
        return f"{'(' if self.low_open else '['}{low}, {high}{')' if self.high_open else ']'}"


def _end(x: End) -> str:
    if not isinstance(x, Fraction):
        return "∞" if x > 0 else "−∞"
    if max(x.numerator.bit_length(), x.denominator.bit_length()) <= 40:
        text = str(x)
        if len(text) <= 12:
            return text
    shown = f"{float(Number(x)):.6g}"
    if x and shown in ("0", "-0"):
        return "a tiny number" if x > 0 else "−a tiny number"
    return "a huge number" if shown == "inf" else "−a huge number" if shown == "-inf" else shown


ALL = Interval(-INFINITY, INFINITY)
ZERO, ONE = Fraction(0), Fraction(1)
POSITIVE = Interval(ZERO, INFINITY)
NON_NEGATIVE = Interval(ZERO, INFINITY, low_open=False)
_UNIT = Interval(-ONE, ONE, False, False)
Scalars = Mapping[str, Interval]


def interval(node: Node, scalars: Scalars, least: int = 1) -> Interval:
    """An interval that contains every value of an expression where it is defined.

    Vectors have at least `least` coordinates; `scalars` gives the intervals of letters.
    """
    if node.kind == "number":
        assert isinstance(node.value, Fraction)
        return Interval(node.value, node.value, False, False)
    if node.kind == "name":
        if node.value in ("pi", "π"):
            return Interval(Fraction(314159, 100_000), Fraction(314160, 100_000))
        if node.value == "d":
            return Interval(Fraction(least), INFINITY, False)
        return scalars.get(str(node.value), ALL)
    if node.kind == "neg":
        return _negated(interval(node.parts[0], scalars, least))
    if node.kind == "call":
        return _call(node, scalars, least)
    if node.kind == "sum":
        indices, body = node.parts
        strict = 1 + str(indices.value).split("|").count("<")
        return _repeated(interval(body, scalars, least), may_be_empty=strict > least)
    if node.kind == "op":
        return _operation(node, scalars, least)
    return ALL


def _call(node: Node, scalars: Scalars, least: int) -> Interval:
    name = str(node.value)
    inner = [interval(part, scalars, least) for part in node.parts]
    if name == "sum":
        return _repeated(inner[0], may_be_empty=False)
    if name in ("norm", "norm2"):
        return NON_NEGATIVE
    if name in ("cos", "sin", "cosine"):
        return _UNIT
    if name == "cosh":
        return Interval(ONE, INFINITY, low_open=False)
    if name == "abs":
        return _absolute(inner[0])
    if name in ("max", "min") and len(inner) == 2:
        return _largest(*inner) if name == "max" else _negated(_largest(*map(_negated, inner)))
    if name in _GROWING and len(inner) == 1:
        return _grown(name, inner[0])
    return ALL


# Growing functions: their limits at −∞ and ∞, and the lowest argument that they accept.
_GROWING: dict[str, tuple[End, End, End]] = {
    "exp": (ZERO, INFINITY, -INFINITY),
    "relu": (ZERO, INFINITY, -INFINITY),
    "elu": (-ONE, INFINITY, -INFINITY),
    "tanh": (-ONE, ONE, -INFINITY),
    "sigmoid": (ZERO, ONE, -INFINITY),
    "sinh": (-INFINITY, INFINITY, -INFINITY),
    "sqrt": (ZERO, INFINITY, ZERO),
    "log": (-INFINITY, INFINITY, ZERO),
}


def _grown(name: str, x: Interval) -> Interval:
    bottom, top, least = _GROWING[name]
    low: tuple[End, bool] = (bottom, True)
    if x.low > least or (x.low == least and name == "sqrt"):
        low = _at(name, x.low, x.low_open, below=True)
    elif name in ("relu", "sqrt"):  # they are 0 somewhere below
        low = (ZERO, False)
    high: tuple[End, bool] = (top, True)
    if isinstance(x.high, Fraction) and (x.high > least or name == "sqrt"):
        high = _at(name, x.high, x.high_open, below=False)
    if name == "relu" and x.high <= 0:
        return Interval(ZERO, ZERO, False, False)
    if name == "relu" and x.low <= 0:
        low = (ZERO, x.low == 0 and x.low_open)
    return Interval(low[0], high[0], low[1], high[1])


def _at(name: str, x: End, is_open: bool, *, below: bool) -> tuple[End, bool]:
    """The value at an end, rounded outwards, and whether that end is open."""
    bottom, top, _ = _GROWING[name]
    worst = bottom if below else top
    if not isinstance(x, Fraction) or (name == "sqrt" and x < 0):
        return worst, True
    before, iv.prec = iv.prec, 80
    try:
        value = EXACTLY[name](Number(x)).value
    except (UndefinedError, OverflowError):
        return worst, True
    finally:
        iv.prec = before
    if isinstance(value, Fraction):
        return value, is_open
    end = value.a if below else value.b
    sign, mantissa, exponent, _ = end._mpi_[0]
    fraction = Fraction(int(mantissa)) * Fraction(2) ** int(exponent)
    return (-fraction if sign else fraction), True


def _operation(node: Node, scalars: Scalars, least: int) -> Interval:
    left, right = node.parts
    a = interval(left, scalars, least)
    if node.value == "**":
        assert isinstance(right.value, Fraction)
        return _power(a, right.value)
    if node.value == "·" and not _scalar(left, scalars) and not _scalar(right, scalars):
        return NON_NEGATIVE if same(left, right) else ALL
    b = interval(right, scalars, least)
    if node.value == "+":
        return _sum(a, b)
    if node.value == "-":
        return _sum(a, _negated(b))
    if node.value in ("*", "·"):
        return _power(a, Fraction(2)) if same(left, right) else _product(a, b)
    if b.positive:
        return _product(a, _inverse(b))
    return _product(a, _negated(_inverse(_negated(b)))) if b.negative else ALL


def _scalar(node: Node, scalars: Scalars) -> bool:
    return node.kind == "number" or (node.kind == "name" and str(node.value) in scalars)


def _inverse(a: Interval) -> Interval:
    """1/x of positive numbers."""
    low = 1 / a.high if isinstance(a.high, Fraction) else ZERO
    high = 1 / a.low if a.low > 0 else INFINITY
    return Interval(low, high, a.high_open or low == 0, a.low_open or high == INFINITY)


def _power(a: Interval, power: Fraction) -> Interval:
    if power.denominator != 1:
        if power == Fraction(1, 2):
            return _grown("sqrt", a)
        return POSITIVE if a.positive or power < 0 else NON_NEGATIVE
    if power == 0:
        return Interval(ONE, ONE, False, False)
    if power < 0:
        if a.positive:
            return _power(_inverse(a), -power)
        if power % 2 == 0:
            return POSITIVE  # where it is defined
        return _negated(_power(_inverse(_negated(a)), -power)) if a.negative else ALL
    if power % 2 == 0:
        a = _absolute(a)
    return Interval(_pow(a.low, power), _pow(a.high, power), a.low_open, a.high_open)


def _pow(x: End, power: Fraction) -> End:
    if isinstance(x, Fraction):
        return x ** int(power)
    return INFINITY if x > 0 or int(power) % 2 == 0 else -INFINITY


def _absolute(a: Interval) -> Interval:
    if a.low >= 0:
        return a
    if a.high <= 0:
        return _negated(a)
    left, right = (-a.low, a.low_open), (a.high, a.high_open)
    high, is_open = _upper(left, right)
    return Interval(ZERO, high, False, is_open)


def _upper(*ends: tuple[End, bool]) -> tuple[End, bool]:
    """The largest end. It is closed if any of the largest ends is."""
    high = max(x for x, _ in ends)
    return high, all(is_open for x, is_open in ends if x == high)


def _largest(a: Interval, b: Interval) -> Interval:
    low = max(a.low, b.low)
    low_open = any(x.low_open for x in (a, b) if x.low == low)
    high, high_open = _upper((a.high, a.high_open), (b.high, b.high_open))
    return Interval(low, high, low_open, high_open)


def _negated(a: Interval) -> Interval:
    return Interval(-a.high, -a.low, a.high_open, a.low_open)


def _sum(a: Interval, b: Interval) -> Interval:
    return Interval(
        _plus(a.low, b.low),
        _plus(a.high, b.high),
        a.low_open or b.low_open,
        a.high_open or b.high_open,
    )


def _plus(x: End, y: End) -> End:
    if isinstance(x, Fraction) and isinstance(y, Fraction):
        return x + y
    return (
        y if isinstance(x, Fraction) else x
    )  # the infinite one; two infinite ends have the same sign


def _repeated(a: Interval, *, may_be_empty: bool) -> Interval:
    """A sum of such terms: at least one, or possibly none."""
    low: tuple[End, bool] = (a.low, a.low_open) if a.low >= 0 else (-INFINITY, True)
    high: tuple[End, bool] = (a.high, a.high_open) if a.high <= 0 else (INFINITY, True)
    if may_be_empty:
        low = (ZERO, False) if low[0] >= 0 else low
        high = (ZERO, False) if high[0] <= 0 else high
    return Interval(low[0], high[0], low[1], high[1])


def _product(a: Interval, b: Interval) -> Interval:
    """All products. The extreme ones are products of ends."""
    corners = [
        _corner(x, y)
        for x in ((a.low, a.low_open), (a.high, a.high_open))
        for y in ((b.low, b.low_open), (b.high, b.high_open))
    ]
    low, low_open = _upper(*((-x, is_open) for x, is_open in corners))
    high, high_open = _upper(*corners)
    low = -low
    # A 0 inside one factor is reached, whatever the ends of the other factor are.
    if low == 0 and (_reaches_zero(a) or _reaches_zero(b)):
        low_open = False
    if high == 0 and (_reaches_zero(a) or _reaches_zero(b)):
        high_open = False
    return Interval(low, high, low_open, high_open)


def _reaches_zero(a: Interval) -> bool:
    return not (a.positive or a.negative)


def _corner(x: tuple[End, bool], y: tuple[End, bool]) -> tuple[End, bool]:
    zeros = [z for z in (x, y) if z[0] == 0]
    if zeros:
        return ZERO, all(is_open for _, is_open in zeros)
    if isinstance(x[0], Fraction) and isinstance(y[0], Fraction):
        return x[0] * y[0], x[1] or y[1]
    return (INFINITY if (x[0] > 0) == (y[0] > 0) else -INFINITY), True


def same(a: Node, b: Node) -> bool:
    """Whether two expressions are written in the same way."""
    alike = (a.kind, a.value, len(a.parts)) == (b.kind, b.value, len(b.parts))
    return alike and all(same(x, y) for x, y in zip(a.parts, b.parts, strict=True))
