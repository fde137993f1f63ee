"""The sign of a normal form: from its terms, its real roots, or its squares."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

from kerneltrick.proofs._form import Form, form_sign
from kerneltrick.proofs._normal import Space
from kerneltrick.proofs._psd_form import is_psd
from kerneltrick.proofs._search import NOTHING
from kerneltrick.proofs._sympy import sympy, write

LARGEST = 200  # the highest degree of a polynomial whose roots are counted


class Known(NamedTuple):
    """The sign of a similarity as far as it is proven, and the proof."""

    sign: str  # positive, non-negative, negative, non-positive or any
    why: str

    def or_missing(self, what: str) -> str:
        """Why there is no verdict: the claim says nothing, or nothing was found."""
        return self.why if self.why == NOTHING else f"neither a proof of the sign nor {what}"


def by_terms(form: Form, space: Space) -> Known:
    """The sign that all terms have."""
    return Known(form_sign(form, space.known), "every term of its normal form has that sign")


def by_roots(form: Form, space: Space) -> Known:
    """The sign of a polynomial in one atom, from its real roots in the atom's range (Sturm)."""
    found = one_atom(form)
    if found is None:
        return Known("any", "")
    a, polynomial = found
    low, closed = None, False  # the range of an atom that is ≥ 0 or > 0
    sign = space.known(a)
    if sign in ("positive", "non-negative"):
        low, closed = sympy.Integer(0), sign == "non-negative"
    elif sign != "any":
        return Known("any", "")
    return _polynomial_sign(polynomial, low, closed, atom_name(a))


def one_atom(form: Form) -> tuple[Any, Any] | None:
    """The single atom of a form, and the form as a polynomial in it."""
    atoms = form.atoms()
    powers = [e for m in form.terms for _, e in m]
    if len(atoms) != 1 or any(e.denominator != 1 or not 0 <= e <= LARGEST for e in powers):
        return None
    t = sympy.Symbol("t")
    expression = sum(
        (
            sympy.Rational(c.numerator, c.denominator) * t ** int(sum(e for _, e in m))
            for m, c in form.terms.items()
        ),
        sympy.Integer(0),
    )
    return atoms.pop(), sympy.Poly(expression, t)


def by_squares(form: Form) -> Known:
    """The sign of a sum of squares of the coordinates, such as norm2(q − k)."""
    letters = list[str]()
    table: dict[tuple[str, str], Fraction] = {}
    for m, c in form.terms.items():
        if m == frozenset():
            if c < 0:
                return Known("any", "")
            continue
        ((a, e), *others) = m
        if others or e != 1 or a[0] != "sum" or any(x[0] != "any" for x, _ in a[1]):
            return Known("any", "")
        words = [x[1] for x, power in a[1] for _ in range(int(power)) if power.denominator == 1]
        if len(words) != 2:
            return Known("any", "")
        letters += words
        half = c if words[0] == words[1] else c / 2
        table[words[0], words[1]] = table[words[1], words[0]] = half
    keys = sorted(set(letters))
    matrix = [[table.get((a, b), Fraction(0)) for b in keys] for a in keys]
    if not keys or not is_psd(matrix):
        return Known("any", "")
    sign = "positive" if form.terms.get(frozenset()) else "non-negative"
    return Known(sign, "it is a sum of squares of the coordinates")


def _polynomial_sign(polynomial: Any, low: Any, closed: bool, name: str) -> Known:
    """The sign from square-free factors. Those with odd powers must not change their sign."""
    t = polynomial.gen
    odd = reached = False
    for factor, power in polynomial.sqf_list()[1]:
        inside = factor.count_roots(low, None)
        if low is not None and factor.eval(low) == 0:
            reached |= closed
            inside -= 1  # a root at the end of the range changes no sign
        odd |= power % 2 == 1 and inside > 0
        reached |= inside > 0
    if odd:
        return Known("any", "")
    start = sympy.Integer(0) if low is None else low + 1
    while polynomial.eval(start) == 0:
        start += sympy.Rational(1, 7)
    value = polynomial.eval(start)
    what = f"as a polynomial in t = {name} it has"
    if reached:
        sign = "non-negative" if value > 0 else "non-positive"
        return Known(sign, f"{what} only double roots")
    sign = "positive" if value > 0 else "negative"
    range_ = "" if low is None else f" where {t} {'≥' if closed else '>'} 0"
    return Known(sign, f"{what} no real root{range_} and is {write(value)} at t = {write(start)}")


def atom_name(a: tuple[Any, ...]) -> str:
    """How a reason names an atom."""
    if a[0] == "sum" and all(x[0] == "any" for x, _ in a[1]):
        powers = {x[1]: e for x, e in a[1]}
        if powers == {"q": 1, "k": 1}:
            return "q·k"
        if len(powers) == 1 and set(powers.values()) == {2}:
            return f"norm2({next(iter(powers))})"
    return str(a[1]) if a[0] == "name" else "one sum"
