"""Polynomials in named sizes with exact coefficients, in which all counts are written."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Union

Monomial = tuple[tuple[str, int], ...]  # (symbol, exponent ≠ 0), in writing order
Number = int | Fraction
Like = Union["Polynomial", int, Fraction]

_ORDER = tuple("wbnhgdFDkvmMCB")  # the order of symbols in a monomial
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


class Polynomial:
    """Σ c·n^a·D^b·… with exact coefficients and whole exponents, which may be negative.

    >>> n, D, M = symbols("n D M")
    >>> count = n**2 * (D + M)
    >>> print(count, "=", count.at(n=1000, D=32, M=80))
    n²·D + n²·M = 112000000
    """

    __slots__ = ("_terms",)

    def __init__(self, terms: Mapping[Monomial, Number] | None = None) -> None:
        found = {key: Fraction(c) for key, c in (terms or {}).items() if c}
        self._terms = dict(sorted(found.items(), key=lambda item: _rank(item[0])))

    @property
    def terms(self) -> dict[Monomial, Fraction]:
        """The coefficient of each monomial, in printing order."""
        return dict(self._terms)

    @property
    def symbols(self) -> tuple[str, ...]:
        return tuple(sorted({s for key in self._terms for s, _ in key}, key=_place))

    def monomials(self) -> Iterator[Polynomial]:
        """The terms without their coefficients."""
        return (Polynomial({key: 1}) for key in self._terms)

    def degree(self, symbol: str) -> int:
        """The largest exponent of a symbol; 0 if it does not occur."""
        return max((dict(key).get(symbol, 0) for key in self._terms), default=0)

    def coefficient(self, symbol: str, power: int) -> Polynomial:
        """The coefficient of symbol^power, a polynomial in the other symbols."""
        return Polynomial(
            {
                tuple((s, e) for s, e in key if s != symbol): c
                for key, c in self._terms.items()
                if dict(key).get(symbol, 0) == power
            }
        )

    def __add__(self, other: Like) -> Polynomial:
        total = dict(self._terms)
        for key, c in _as(other)._terms.items():
            total[key] = total.get(key, Fraction(0)) + c
        return Polynomial(total)

    def __neg__(self) -> Polynomial:
        return Polynomial({key: -c for key, c in self._terms.items()})

    def __sub__(self, other: Like) -> Polynomial:
        return self + -_as(other)

    def __rsub__(self, other: Like) -> Polynomial:
        return _as(other) - self

    def __mul__(self, other: Like) -> Polynomial:
        total: dict[Monomial, Fraction] = {}
        for left, a in self._terms.items():
            for right, b in _as(other)._terms.items():
                key = _times(left, right)
                total[key] = total.get(key, Fraction(0)) + a * b
        return Polynomial(total)

    __radd__ = __add__
    __rmul__ = __mul__

    def __truediv__(self, other: Like) -> Polynomial:
        return self * _as(other) ** -1

    def __rtruediv__(self, other: Like) -> Polynomial:
        return _as(other) / self

    def __pow__(self, power: int) -> Polynomial:
        if power < 0:
            if len(self._terms) != 1:
                raise ValueError(f"a divisor must be a single term, not {self}")
            ((key, c),) = self._terms.items()
            return Polynomial({tuple((s, -e) for s, e in key): 1 / c}) ** -power
        result, factor = Polynomial({(): 1}), self
        while power:
            if power & 1:
                result = result * factor
            factor, power = factor * factor, power >> 1
        return result

    def subs(self, **values: Like) -> Polynomial:
        """Substitute numbers or polynomials for symbols."""
        total = Polynomial()
        for key, c in self._terms.items():
            term = Polynomial({tuple((s, e) for s, e in key if s not in values): c})
            for s, e in key:
                if s in values:
                    term = term * _as(values[s]) ** e
            total = total + term
        return total

    def at(self, **values: Number) -> Number:
        """The value for given sizes, as an int if it is whole. Every symbol needs a value."""
        missing = [s for s in self.symbols if s not in values]
        if missing:
            raise ValueError(f"{self} needs a value for {', '.join(missing)}")
        total = self.subs(**values)._terms.get((), Fraction(0))
        return int(total) if total.denominator == 1 else total

    def total(self, symbol: str) -> Polynomial:
        """The sum over t = 1…n of this polynomial with t in place of the symbol n.

        >>> print(symbol("n").total("n"))
        n²/2 + n/2
        """
        powers = [self.coefficient(symbol, p) for p in range(self.degree(symbol) + 1)]
        n, sums = Polynomial.symbol(symbol), list[Polynomial]()
        for p in range(len(powers)):  # Pascal's recursion for Σ tᵖ
            lower = sum((math.comb(p + 1, j) * s for j, s in enumerate(sums)), Polynomial())
            sums.append(((n + 1) ** (p + 1) - 1 - lower) / (p + 1))
        return sum((c * s for c, s in zip(powers, sums, strict=True)), Polynomial())

    @classmethod
    def symbol(cls, name: str) -> Polynomial:
        return cls({((name, 1),): 1})

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int | Fraction):
            other = Polynomial({(): other})
        return isinstance(other, Polynomial) and self._terms == other._terms

    def __hash__(self) -> int:
        return hash(frozenset(self._terms.items()))

    def __bool__(self) -> bool:
        return bool(self._terms)

    def __str__(self) -> str:
        text = "".join(
            f" {'-' if c < 0 else '+'} {_write(key, abs(c))}" for key, c in self._terms.items()
        )
        return ("-" if text.startswith(" -") else "") + text[3:] if text else "0"

    def __repr__(self) -> str:
        return f"<{self}>"


def symbol(name: str) -> Polynomial:
    """The symbol with this name."""
    return Polynomial.symbol(name)


def symbols(names: str) -> tuple[Polynomial, ...]:
    """Several symbols, from names separated by spaces."""
    return tuple(map(symbol, names.split()))


def binomial(top: Like, bottom: int) -> Polynomial:
    """C(top, bottom) as a polynomial in the symbols of `top`.

    >>> print(binomial(symbol("D") + 2, 2))
    D²/2 + 3·D/2 + 1
    """
    result = Polynomial({(): 1})
    for i in range(bottom):
        result = result * (_as(top) - i) / (i + 1)
    return result


def _as(value: Like) -> Polynomial:
    return value if isinstance(value, Polynomial) else Polynomial({(): value})


def _times(left: Monomial, right: Monomial) -> Monomial:
    powers = dict(left)
    for s, e in right:
        powers[s] = powers.get(s, 0) + e
    return tuple(sorted(((s, e) for s, e in powers.items() if e), key=lambda x: _place(x[0])))


def _place(name: str) -> tuple[int, str]:
    return (_ORDER.index(name) if name in _ORDER else len(_ORDER), name)


def _rank(key: Monomial) -> tuple[object, ...]:
    powers = dict(key)
    known = tuple(-powers.get(s, 0) for s in _ORDER)
    return (known, tuple((s, -e) for s, e in key))


def _write(key: Monomial, c: Fraction) -> str:
    above = [_power(s, e) for s, e in key if e > 0]
    below = [_power(s, -e) for s, e in key if e < 0]
    if c.numerator != 1 or not above:
        above.insert(0, f"{c.numerator}")
    if c.denominator != 1:
        below.insert(0, f"{c.denominator}")
    text = "·".join(above)
    if below:
        text += "/" + ("·".join(below) if len(below) == 1 else f"({'·'.join(below)})")
    return text


def _power(name: str, exponent: int) -> str:
    return name if exponent == 1 else name + str(exponent).translate(_RAISED)
