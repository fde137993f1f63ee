"""Which values an expression can take: intervals, with their ends in or out."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import NamedTuple

from kerneltrick.proofs._syntax import Node

INFINITY = math.inf
End = float | Fraction  # exact where no exp or root is involved


class Interval(NamedTuple):
    """From low to high; an end that is `open` is never reached."""

    low: End
    high: End
    low_open: bool = True
    high_open: bool = True

    @property
    def positive(self) -> bool:
        """Whether every value is > 0; a rounded end must be clear of 0."""
        clear = self.low > (0 if isinstance(self.low, Fraction) else 1e-9)
        return clear or (self.low == 0 and self.low_open)

    @property
    def negative(self) -> bool:
        return Interval(-self.high, -self.low, self.high_open, self.low_open).positive

    def __str__(self) -> str:
        low, high = (_end(x) for x in (self.low, self.high))
        return f"{'(' if self.low_open else '['}{low}, {high}{')' if self.high_open else ']'}"


def _end(x: End) -> str:
    if x in (INFINITY, -INFINITY):
        return "∞" if x > 0 else "−∞"
    return str(x) if isinstance(x, Fraction) else f"{x:.6g}"


ALL = Interval(-INFINITY, INFINITY)
ZERO, ONE = Fraction(0), Fraction(1)
POSITIVE = Interval(ZERO, INFINITY)
NON_NEGATIVE = Interval(ZERO, INFINITY, low_open=False)


def interval(node: Node, scalars: Mapping[str, Interval]) -> Interval:
    """A set that holds every value of an expression; vectors are anything, letters as given."""
    if node.kind == "number":
        assert isinstance(node.value, Fraction)
        return Interval(node.value, node.value, False, False)
    if node.kind == "name":
        return scalars.get(str(node.value), ALL)
    if node.kind == "neg":
        return _negated(interval(node.parts[0], scalars))
    if node.kind == "call":
        return _call(node, scalars)
    if node.kind == "sum":
        return _repeated(interval(node.parts[1], scalars))
    if node.kind == "op":
        return _operation(node, scalars)
    return ALL


def _call(node: Node, scalars: Mapping[str, Interval]) -> Interval:
    name = str(node.value)
    inner = [interval(part, scalars) for part in node.parts]
    if name in ("dot", "cosine", "sum"):
        if name == "cosine":
            return Interval(-ONE, ONE, False, False)
        return _repeated(inner[0]) if name == "sum" else ALL
    if name in ("abs", "norm", "norm2"):
        return NON_NEGATIVE
    fixed: dict[str, Interval] = {
        "cos": Interval(-ONE, ONE, False, False),
        "sin": Interval(-ONE, ONE, False, False),
        "tanh": Interval(-ONE, ONE),
        "sigmoid": Interval(ZERO, ONE),
        "cosh": Interval(ONE, INFINITY, low_open=False),
    }
    if name in fixed:
        return fixed[name]
    growing: dict[str, Callable[[End], End]] = {
        "exp": _exp,
        "relu": lambda x: max(x, ZERO),
        "elu": lambda x: x if x >= 0 else _exp(x) - 1,
        "sqrt": lambda x: math.sqrt(x) if x > 0 else ZERO,
    }
    if name in growing and len(inner) == 1:
        x = inner[0]
        low, high = growing[name](x.low), growing[name](x.high)
        # relu of a negative number is 0, which it reaches even where x does not reach its end.
        # e^x is never 0, even where it rounds to it.
        low_open = x.low_open and not (name in ("relu", "sqrt") and x.low < 0)
        low_open |= name == "exp" and low == 0
        high_open = x.high_open and not (name == "relu" and x.high <= 0)
        return Interval(low, high, low_open, high_open)
    if name in ("max", "min") and len(inner) == 2:
        a, b = inner
        if name == "max":
            return max(a, b, key=lambda x: (x.low, x.low_open))._replace(high=INFINITY)
        return min(a, b, key=lambda x: (x.high, not x.high_open))._replace(low=-INFINITY)
    return ALL


def _operation(node: Node, scalars: Mapping[str, Interval]) -> Interval:
    left, right = node.parts
    a = interval(left, scalars)
    if node.value == "**":
        assert isinstance(right.value, Fraction)
        return _power(a, right.value)
    if node.value == "·" and not _scalar(left, scalars) and not _scalar(right, scalars):
        return NON_NEGATIVE if same(left, right) else ALL
    b = interval(right, scalars)
    if node.value == "+":
        return _sum(a, b)
    if node.value == "-":
        return _sum(a, _negated(b))
    if node.value in ("*", "·"):
        if same(left, right):
            return _power(a, Fraction(2))
        return _product(a, b)
    if node.value == "/" and (b.positive or b.negative):
        signs = POSITIVE if b.positive else _negated(POSITIVE)
        constant = b.low == b.high
        inverse = Interval(1 / b.low, 1 / b.low, False, False) if constant else signs
        return _product(a, inverse)
    return ALL


def _scalar(node: Node, scalars: Mapping[str, Interval]) -> bool:
    return node.kind == "number" or (node.kind == "name" and str(node.value) in scalars)


def _power(a: Interval, power: Fraction) -> Interval:
    if power.denominator == 1 and power.numerator % 2 == 0 and power > 0:
        if a.positive or a.negative:
            x = a if a.positive else _negated(a)
            return Interval(_pow(x.low, power), _pow(x.high, power), x.low_open, x.high_open)
        top = max(-a.low, a.high)  # 0 lies inside
        return Interval(ZERO, _pow(top, power), False, False)
    if power.denominator == 1 and power > 0:
        return Interval(_pow(a.low, power), _pow(a.high, power), a.low_open, a.high_open)
    if a.positive:
        return POSITIVE
    return NON_NEGATIVE if power > 0 and power.denominator == 2 else ALL


def _pow(x: End, power: Fraction) -> End:
    try:
        return x ** int(power)
    except OverflowError:
        return INFINITY if x > 0 or int(power) % 2 == 0 else -INFINITY


def _exp(x: End) -> End:
    if x == -INFINITY:
        return ZERO
    return math.exp(x) if x < 700 else INFINITY


def _negated(a: Interval) -> Interval:
    return Interval(-a.high, -a.low, a.high_open, a.low_open)


def _sum(a: Interval, b: Interval) -> Interval:
    return Interval(
        a.low + b.low, a.high + b.high, a.low_open or b.low_open, a.high_open or b.high_open
    )


def _repeated(a: Interval) -> Interval:
    """A sum of at least one such term."""
    low = a.low if a.low >= 0 else -INFINITY
    high = a.high if a.high <= 0 else INFINITY
    return Interval(low, high, a.low_open, a.high_open)


def _product(a: Interval, b: Interval) -> Interval:
    if a.high <= 0 and a.low < 0:
        return _negated(_product(_negated(a), b))
    if b.high <= 0 and b.low < 0:
        return _negated(_product(a, _negated(b)))
    if a.low >= 0 and b.low >= 0:
        low_open = (a.low_open and b.low_open) if a.low == b.low == 0 else _low_open(a, b)
        return Interval(_times(a.low, b.low), _times(a.high, b.high), low_open, True)
    ends = [_times(x, y) for x in (a.low, a.high) for y in (b.low, b.high)]
    return Interval(min(ends), max(ends), False, False)


def _low_open(a: Interval, b: Interval) -> bool:
    """Whether the product of the lower ends, at least one of them not 0, is never reached."""
    if a.low == 0:
        return a.low_open
    if b.low == 0:
        return b.low_open
    return a.low_open or b.low_open


def _times(x: End, y: End) -> End:
    return ZERO if x == 0 or y == 0 else x * y


def same(a: Node, b: Node) -> bool:
    """Whether two expressions read the same."""
    alike = (a.kind, a.value, len(a.parts)) == (b.kind, b.value, len(b.parts))
    return alike and all(same(x, y) for x, y in zip(a.parts, b.parts, strict=True))
