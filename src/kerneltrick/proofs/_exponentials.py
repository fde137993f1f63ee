"""Sums of c·tᵐ·eʳᵗ with rational c and r: the signs of their values and of their Taylor series."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction

from kerneltrick.proofs._form import UNIT, Form, Known, Monomial, form_sign
from kerneltrick.proofs._number import EXACTLY, Number, exactly
from kerneltrick.proofs._sympy import Expr, iv, sympy

Sum = Mapping[tuple[int, Fraction], Fraction]  # (m, r): c
CONSTANTS = ("prime", "pi", "rest")
MOST_TERMS = 12
MOST_STEPS = 400
LONGEST, SHORTEST = Fraction(1, 4), Fraction(1, 4096)  # steps along the line
LAST_CHECKED = 200  # the number of Taylor coefficients that are computed
ZERO = Fraction(0)


def exponents(form: Form) -> list[Monomial]:
    """Every t of an atom eᵗ in a form that is not a constant."""
    found = dict.fromkeys(a[1] for m in form.terms for a, _ in m if a[0] == "exp")
    return [t for t in found if any(a[0] not in CONSTANTS for a, _ in t)]


def in_powers_of(t: Monomial, form: Form) -> dict[Monomial, dict[tuple[int, Fraction], Fraction]]:
    """The form as Σ rest·Σ c·tᵐ·eʳᵗ, by rest."""
    found: dict[Monomial, dict[tuple[int, Fraction], Fraction]] = {}
    for term, c in form.terms.items():
        powers = dict(term)
        r = powers.pop(("exp", t), ZERO)
        m = int(min(max(powers.get(a, ZERO) / e, ZERO) for a, e in t if a[0] not in CONSTANTS))
        for a, e in t:
            powers[a] = powers.get(a, ZERO) - m * e
        rest = frozenset((a, e) for a, e in powers.items() if e)
        found.setdefault(rest, {})[m, r] = c
    return found


# The sign on the whole line


def sign_of_exponentials(form: Form, known: Known) -> str:
    """positive or non-negative if that is proven for all t, else any."""
    for t in exponents(form):
        groups = in_powers_of(t, form)
        total = groups.get(UNIT, {})
        if set(groups) == {UNIT} and sum(m + 1 for m, _ in total) <= MOST_TERMS:
            signs = [_from_zero(total)]
            if form_sign(Form({t: Fraction(1)}), known) not in ("positive", "non-negative"):
                mirrored = {(m, -r): c * (-1) ** m for (m, r), c in total.items()}
                signs.append(_from_zero(mirrored))
            return next(x for x in ("any", "non-negative", "positive") if x in signs)
    return "any"


def _from_zero(total: Sum) -> str:
    """The sign for t ≥ 0: intervals in which it is positive, then all t from some point on."""
    start, step = ZERO, LONGEST
    for _ in range(MOST_STEPS):
        found = _beyond(total, start) if step == LONGEST else "any"
        if found != "any":
            return found
        while not _positive_between(total, start, start + step):
            step /= 2
            if step < SHORTEST:
                return "any"
        start, step = start + step, min(2 * step, LONGEST)
    return "any"


def _beyond(total: Sum, start: Fraction) -> str:
    """The sign for t ≥ start ≥ 0. With g(t) = f(t)·e⁻ʳᵗ, f(start) ≥ 0 and g′ ≥ 0 imply f ≥ 0."""
    value = exactly(lambda: _value(total, start))
    if value is None or value[0] < 0:
        return "any"
    grows = all(c >= 0 for c in total.values()) or any(
        _beyond(_slope(total, r), start) != "any" for r in sorted({r for _, r in total})
    )
    return "any" if not grows else "positive" if value[0] else "non-negative"


def _slope(total: Sum, rate: Fraction) -> Sum:
    """The derivative of f(t)·e^{−rate·t}."""
    found: dict[tuple[int, Fraction], Fraction] = {}
    for (m, r), c in total.items():
        for key, x in (((m - 1, r - rate), c * m), ((m, r - rate), c * (r - rate))):
            found[key] = found.get(key, ZERO) + x
    return {key: x for key, x in found.items() if x}


def _value(total: Sum, t: Fraction) -> Number:
    terms = (Number(c * t**m) * EXACTLY["exp"](Number(r * t)) for (m, r), c in total.items())
    return sum(terms, Number(0))


def _positive_between(total: Sum, low: Fraction, high: Fraction) -> bool:
    """Whether interval arithmetic shows that it is positive between two binary fractions."""
    t = iv.mpf([float(low), float(high)])
    terms = (_enclosed(c) * t**m * iv.exp(_enclosed(r) * t) for (m, r), c in total.items())
    return bool(sum(terms, iv.mpf(0)).a > 0)


def _enclosed(x: Fraction) -> object:
    return iv.mpf(x.numerator) / iv.mpf(x.denominator)


# The signs of the Taylor coefficients


def has_positive_series(total: Sum) -> bool:
    """Whether every Taylor coefficient at t = 0 is proven to be ≥ 0.

    The n-th one times n! is a(n) = Σ c·n(n−1)…(n−m+1)·rⁿ⁻ᵐ. The first ones are computed. From some
    n on, the largest |r| outweighs the others, for even and for odd n."""
    return all(_outweighed(total, parity) for parity in (0, 1))


def _outweighed(total: Sum, parity: int) -> bool:
    n = sympy.Symbol("n")
    weights: dict[Fraction, Expr] = {}  # |r|: the polynomial in n that |r|ⁿ has as a factor
    for (m, r), c in total.items():
        if r:
            size = abs(r)
            sign = -1 if r < 0 and (parity - m) % 2 else 1
            x = sign * c / size**m
            term = sympy.Rational(x.numerator, x.denominator) * sympy.ff(n, m)
            weights[size] = weights.get(size, sympy.Integer(0)) + term
    found = {r: p for r, w in weights.items() if not (p := sympy.Poly(sympy.expand(w), n)).is_zero}
    first = max((m for m, _ in total), default=0) + 1
    for k in range(parity, LAST_CHECKED, 2):
        if k >= first and _wins(found, k):
            return True
        if _coefficient(total, k) < 0:
            return False
    return False


def _wins(weights: Mapping[Fraction, Expr], k: int) -> bool:
    """Whether the largest base outweighs the others for k, k + 2, k + 4, …"""
    if not weights:
        return True
    top, *others = sorted(weights, reverse=True)
    grows = all(c >= 0 for c in weights[top].shift(k).all_coeffs())  # in powers of n − k
    left = weights[top].eval(k) * _rational(top) ** k
    for r in others:
        sizes = sympy.Poly([abs(c) for c in weights[r].all_coeffs()], *weights[r].gens)
        left -= sizes.eval(k) * _rational(r) ** k
        ratio = (Fraction(k + 2, k) ** sizes.degree()) * (r / top) ** 2
        grows = grows and ratio <= 1
    return bool(grows and left >= 0)


def _coefficient(total: Sum, k: int) -> Fraction:
    return sum((c * math.perm(k, m) * r ** (k - m) for (m, r), c in total.items() if k >= m), ZERO)


def _rational(x: Fraction) -> Expr:
    return sympy.Rational(x.numerator, x.denominator)
