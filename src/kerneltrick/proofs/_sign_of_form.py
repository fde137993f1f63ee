"""The sign of a normal form: from its terms, its real roots, or its squares."""

from __future__ import annotations

from typing import Any, NamedTuple

from kerneltrick.proofs._exponentials import sign_of_exponentials
from kerneltrick.proofs._form import (
    FLIPPED_SIGN,
    Form,
    NotNormalError,
    form_sign,
    product_sign,
    sum_sign,
)
from kerneltrick.proofs._interval import Interval, Scalars, interval
from kerneltrick.proofs._normal import Index, Space, scalar
from kerneltrick.proofs._search import NOTHING
from kerneltrick.proofs._squares import never_negative
from kerneltrick.proofs._sympy import sympy, write
from kerneltrick.proofs._syntax import Node

LARGEST = 200  # the highest degree of a polynomial whose roots are counted


class Known(NamedTuple):
    """The sign of a similarity as far as it is proven, and the proof."""

    sign: str  # positive, non-negative, negative, non-positive or any
    why: str

    def or_missing(self, what: str) -> str:
        """Why there is no verdict: the claim says nothing, or nothing was found."""
        return self.why if self.why == NOTHING else f"neither a proof of the sign nor {what}"


def strongest(*found: Known) -> Known:
    order = ("positive", "negative", "non-negative", "non-positive", "any")
    return min(found, key=lambda x: order.index(x.sign))


def sign_of_node(
    node: Node, space: Space, limits: Scalars, least: int, index: Index | None = None
) -> Known:
    """The sign of an expression, from the whole or from the signs of its parts."""
    values = interval(node, limits, least)
    found = [Known(_word(values), f"its values lie in {values}")]
    try:
        form = scalar(node, space, index)
        found += [by_terms(form, space), by_roots(form, space), by_inequalities(form, space)]
    except (NotNormalError, ZeroDivisionError):
        pass
    best = strongest(*found)
    if best.sign in ("positive", "negative") or node.kind not in ("op", "neg"):
        return best
    if node.kind == "op" and node.value not in ("+", "-", "*"):
        return best
    parts = [sign_of_node(part, space, limits, least, index) for part in node.parts]
    if node.kind == "neg" or node.value == "-":
        parts[-1] = parts[-1]._replace(sign=FLIPPED_SIGN[parts[-1].sign])
    sign = product_sign if node.value == "*" else sum_sign
    whole = parts[0].sign if len(parts) == 1 else sign(parts[0].sign, parts[1].sign)
    return strongest(best, Known(whole, "; ".join(dict.fromkeys(x.why for x in parts))))


def _word(values: Interval) -> str:
    if values.positive:
        return "positive"
    if values.negative:
        return "negative"
    if values.low >= 0:
        return "non-negative"
    return "non-positive" if values.high <= 0 else "any"


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


def by_inequalities(form: Form, space: Space) -> Known:
    """The sign from squares, such as norm2(q − k), or from tangents, such as eᵗ ≥ 1 + t."""
    squares = "it is a sum of squares, or its square terms outweigh the others"
    tangents = "it grows away from a point where it is ≥ 0, as eᵗ − 1 − t does"
    for sign, f in ((1, form), (-1, -form)):
        for why, found in (
            (squares, never_negative(f, space)),
            (tangents, sign_of_exponentials(f, space.known)),
        ):
            if found != "any":
                return Known(found if sign > 0 else FLIPPED_SIGN[found], why)
    return Known("any", "")


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
