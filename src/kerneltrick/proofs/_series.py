"""Find the degree at which the power series of two expressions first differ."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction

from kerneltrick.proofs._evaluate import Scope, evaluate
from kerneltrick.proofs._statement import Statement

ORDER = 6
_DIRECTIONS = ((1, 2, 3, 5), (2, -1, 1, 3), (-3, 1, 2, 1))


class NoSeriesError(ArithmeticError):
    """The function has no power series at 0 with rational coefficients."""


class Series:
    """c₀ + c₁t + … + c₆t⁶ + …, with rational coefficients."""

    __slots__ = ("c",)

    def __init__(self, c: list[Fraction]) -> None:
        self.c = c

    def __add__(self, other: Series) -> Series:
        return Series([a + b for a, b in zip(self.c, other.c, strict=True)])

    def __sub__(self, other: Series) -> Series:
        return Series([a - b for a, b in zip(self.c, other.c, strict=True)])

    def __neg__(self) -> Series:
        return Series([-a for a in self.c])

    def __mul__(self, other: Series) -> Series:
        return Series(
            [
                sum((self.c[i] * other.c[n - i] for i in range(n + 1)), Fraction(0))
                for n in range(ORDER + 1)
            ]
        )

    def __truediv__(self, other: Series) -> Series:
        if not other.c[0]:
            raise NoSeriesError
        found = list[Fraction]()
        for n in range(ORDER + 1):
            known = sum((found[i] * other.c[n - i] for i in range(n)), Fraction(0))
            found.append((self.c[n] - known) / other.c[0])
        return Series(found)

    def __pow__(self, power: Fraction) -> Series:
        if power == Fraction(1, 2):
            return _sqrt(self)
        if power.denominator != 1:
            raise NoSeriesError
        result = constant(Fraction(1))
        for _ in range(abs(int(power))):
            result = result * self
        return result if power >= 0 else constant(Fraction(1)) / result


def constant(x: Fraction) -> Series:
    return Series([x, *[Fraction(0)] * ORDER])


def parting_degree(statement: Statement) -> int | None:
    """The lowest degree in q and k, up to 6, at which the series of the two sides differ."""
    found = list[int]()
    for direction in _DIRECTIONS:
        vectors = {
            name: [Series([Fraction(0), Fraction(x), *[Fraction(0)] * (ORDER - 1)])]
            for name, x in zip(("q", "k"), direction, strict=False)
        }
        scope = Scope(statement.text, vectors, _letter, _FUNCTIONS, constant, lambda x, p: x**p, 1)
        try:
            gap = evaluate(statement.left, scope) - evaluate(statement.right, scope)
        except (NoSeriesError, ValueError):
            return None
        found += [n for n, c in enumerate(gap.c) if c][:1]
    return min(found, default=None)


def _letter(name: str) -> Series:
    if name != "d":
        raise NoSeriesError
    return constant(Fraction(1))


def _at_zero(x: Series) -> None:
    if x.c[0]:
        raise NoSeriesError


def _exp(x: Series) -> Series:
    _at_zero(x)
    found = [Fraction(1)]
    for n in range(1, ORDER + 1):
        total = sum((k * x.c[k] * found[n - k] for k in range(1, n + 1)), Fraction(0))
        found.append(total / n)
    return Series(found)


def _circular(x: Series) -> tuple[Series, Series]:
    _at_zero(x)
    cosine, sine = [Fraction(1)], [Fraction(0)]
    for n in range(1, ORDER + 1):
        steps = [(k * x.c[k], n - k) for k in range(1, n + 1)]
        sine.append(sum((c * cosine[m] for c, m in steps), Fraction(0)) / n)
        cosine.append(-sum((c * sine[m] for c, m in steps), Fraction(0)) / n)
    return Series(cosine), Series(sine)


def _sqrt(x: Series) -> Series:
    top, bottom = (math.isqrt(abs(y)) for y in (x.c[0].numerator, x.c[0].denominator))
    first = Fraction(top, bottom)
    if first * first != x.c[0] or not first:
        raise NoSeriesError
    found = [first]
    for n in range(1, ORDER + 1):
        known = sum((found[i] * found[n - i] for i in range(1, n)), Fraction(0))
        found.append((x.c[n] - known) / (2 * first))
    return Series(found)


def _none(*_: Series) -> Series:
    raise NoSeriesError


def _tanh(x: Series) -> Series:
    up, down = _exp(x), _exp(-x)
    return (up - down) / (up + down)


_HALF = Fraction(1, 2)
_FUNCTIONS: Mapping[str, Callable[..., Series]] = {
    "exp": _exp,
    "cos": lambda x: _circular(x)[0],
    "sin": lambda x: _circular(x)[1],
    "tanh": _tanh,
    "cosh": lambda x: (_exp(x) + _exp(-x)) * constant(_HALF),
    "sinh": lambda x: (_exp(x) - _exp(-x)) * constant(_HALF),
    "sigmoid": lambda x: constant(Fraction(1)) / (constant(Fraction(1)) + _exp(-x)),
    "sqrt": _sqrt,
    **dict.fromkeys(("log", "abs", "relu", "elu", "max", "min", "C", "factorial", "pi"), _none),
}
