"""Exact numbers: fractions, and intervals that enclose irrational numbers.

Definite verdicts rest on two small modules, this one and `_form`. A counterexample counts only if
its numbers, evaluated here, are strictly apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

from kerneltrick.proofs._sympy import iv, sympy

PRECISIONS = (80, 400, 2000)  # bits, tried in this order until the signs are clear
LARGEST_EXPONENT = 10**6  # of e: beyond it an interval takes too long
LARGEST_BITS = 20_000  # of a fraction


class UndefinedError(ArithmeticError):
    """There is no real value: a division by 0, or a root or logarithm of a negative number."""


class UnknownSignError(ArithmeticError):
    """An interval contains 0, so the sign is unknown at this precision."""


class Number:
    """A real number: a fraction, or an interval with rational ends that contains it."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        if isinstance(value, Fraction):
            if value.numerator.bit_length() + value.denominator.bit_length() > LARGEST_BITS:
                value = _enclosed(value)
        elif isinstance(value, int):
            value = Fraction(value)
        self.value = value

    @property
    def exact(self) -> bool:
        return isinstance(self.value, Fraction)

    @property
    def sign(self) -> int:
        """-1, 0 or 1. Only a fraction can have the sign 0."""
        if isinstance(self.value, Fraction):
            return (self.value > 0) - (self.value < 0)
        if self.value.a > 0:
            return 1
        if self.value.b < 0:
            return -1
        raise UnknownSignError("the sign is unknown at this precision")

    def __float__(self) -> float:
        if isinstance(self.value, Fraction):
            try:
                return float(self.value)
            except OverflowError:
                return math.inf if self.value > 0 else -math.inf
        return float(iv.mpf(self.value).mid)

    def __add__(self, other: Number) -> Number:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: Number) -> Number:
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other: Number) -> Number:
        if (self.exact and self.value == 0) or (other.exact and other.value == 0):
            return Number(0)
        return self._with(other, lambda a, b: a * b)

    def __truediv__(self, other: Number) -> Number:
        if other.sign == 0:
            raise UndefinedError("division by 0")
        return self._with(other, lambda a, b: a / b)

    def __neg__(self) -> Number:
        return Number(-self.value)

    def __pow__(self, power: Fraction) -> Number:
        if power.denominator == 1:
            if power < 0 and self.sign == 0:
                raise UndefinedError("division by 0")
            return Number(self.value ** int(power))
        if self.sign == 0 and power > 0:
            return self
        if self.sign <= 0:
            raise UndefinedError("a root of a number that is not positive")
        root = exact_root(self.value, power.denominator) if self.exact else None
        if root is not None:
            return Number(root ** int(power.numerator))
        inner = _enclosed(self.value) if self.exact else self.value
        return Number(iv.exp(iv.log(inner) * power.numerator / power.denominator))

    def _with(self, other: Number, function: Callable[[Any, Any], Any]) -> Number:
        if self.exact and other.exact:
            return Number(function(self.value, other.value))
        a, b = (_enclosed(x.value) if x.exact else x.value for x in (self, other))
        return Number(function(a, b))


def exactly(evaluate: Callable[[], Number]) -> tuple[int, Number] | None:
    """The sign and the value of an expression, with as many digits as needed.

    Returns None if the sign remains unknown or there is no value."""
    before = iv.prec
    try:
        for precision in PRECISIONS:
            iv.prec = precision
            try:
                value = evaluate()
                return value.sign, value
            except UnknownSignError:
                continue
            except (UndefinedError, OverflowError, ZeroDivisionError):
                return None
        return None
    finally:
        iv.prec = before


def _enclosed(x: Fraction) -> Any:
    return iv.mpf(x.numerator) / iv.mpf(x.denominator)


def exact_root(x: Fraction, n: int) -> Fraction | None:
    """The n-th root of a fraction ≥ 0, if it is a fraction."""
    parts = [sympy.integer_nthroot(y, n) for y in (x.numerator, x.denominator)]
    if not all(whole for _, whole in parts):
        return None
    return Fraction(int(parts[0][0]), int(parts[1][0]))


def _function(name: str, at_zero: int | None = None) -> Callable[[Number], Number]:
    """A function of mpmath's interval arithmetic, with an exact value at 0 if there is one."""

    def value(x: Number) -> Number:
        if x.exact and x.value == 0 and at_zero is not None:
            return Number(at_zero)
        inner = _enclosed(x.value) if x.exact else x.value
        if name == "exp" and max(abs(inner.a), abs(inner.b)) > LARGEST_EXPONENT:
            raise UndefinedError("the exponent is too large to evaluate")
        if name == "log":
            if x.sign <= 0:
                raise UndefinedError("the logarithm of a number that is not positive")
            if x.exact and x.value == 1:
                return Number(0)
        return Number(getattr(iv, name)(inner))

    return value


def _absolute(x: Number) -> Number:
    return -x if x.sign < 0 else x


def _positive_part(x: Number) -> Number:
    return x if x.sign > 0 else Number(0)


def _elu(x: Number) -> Number:
    return x if x.sign > 0 else _exp(x) - Number(1)


def _larger(x: Number, y: Number) -> Number:
    return x if (x - y).sign >= 0 else y


def _smaller(x: Number, y: Number) -> Number:
    return y if (x - y).sign >= 0 else x


def _whole(x: Number) -> int:
    if not (x.exact and x.value.denominator == 1 and abs(x.value) <= 1000):
        raise UndefinedError("factorials and binomials need whole numbers up to 1000")
    return int(x.value)


def _factorial(x: Number) -> Number:
    n = _whole(x)
    if n < 0:
        raise UndefinedError("the factorial of a negative number")
    return Number(math.factorial(n))


def _binomial(top: Number, bottom: Number) -> Number:
    k = _whole(bottom)
    if k < 0:
        return Number(0)
    result = Number(1)
    for i in range(k):
        result = result * (top - Number(i)) / Number(i + 1)
    return result


_exp = _function("exp", 1)
_cos, _sin = _function("cos", 1), _function("sin", 0)


def _tanh(x: Number) -> Number:
    if x.exact and x.value == 0:
        return x
    up, down = _exp(x), _exp(-x)
    return (up - down) / (up + down)


EXACTLY: Mapping[str, Callable[..., Number]] = {
    "sqrt": lambda x: x ** Fraction(1, 2),
    "exp": _exp,
    "log": _function("log"),
    "sin": _sin,
    "cos": _cos,
    "tanh": _tanh,
    "cosh": lambda x: (_exp(x) + _exp(-x)) / Number(2),
    "sinh": lambda x: (_exp(x) - _exp(-x)) / Number(2) if x.sign else x,
    "abs": _absolute,
    "relu": _positive_part,
    "elu": _elu,
    "sigmoid": lambda x: Number(1) / (Number(1) + _exp(-x)),
    "max": _larger,
    "min": _smaller,
    "C": _binomial,
    "factorial": _factorial,
    "pi": lambda: Number(+iv.pi),
}
