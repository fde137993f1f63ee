"""Prove that a form is never negative: as a sum of squares, or as a part that outweighs the rest.

A form is a sum of squares if it is zᵀGz for a positive semi-definite matrix G, where z holds the
roots of its square terms. Products of sums over coordinates are read as double sums: the term
Σqᵢ²·Σkⱼ² of Cauchy and Schwarz's inequality is Σᵢⱼ qᵢ²kⱼ². Terms P that are ≥ 0 outweigh the rest
B if P² ≥ B².
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

from kerneltrick.proofs._form import UNIT, Form, Monomial, form_sign, sign_of
from kerneltrick.proofs._normal import BOUND, REST, Space, relabelled
from kerneltrick.proofs._psd_form import is_psd

MOST_SQUARES = 24
MOST_CHOICES = 64  # ways to write the mixed terms as products
MOST_TERMS = 60
DEEPEST = 2  # how often both sides of an inequality are squared
_HALF = Fraction(1, 2)


def never_negative(form: Form, space: Space, depth: int = DEEPEST) -> str:
    """positive or non-negative if that is proven, else any."""
    if len(form.terms) > MOST_TERMS:
        return "any"
    found = form_sign(form, space.known)
    if found in ("positive", "non-negative"):
        return found
    found = _by_coordinates(form, space)
    return _by_squaring(form, space, depth) if found == "any" and depth else found


def _by_squaring(form: Form, space: Space, depth: int) -> str:
    """P + B ≥ 0 if P ≥ 0 and P² ≥ B²."""
    signs = ("positive", "non-negative")
    terms = {m: form_sign(Form({m: c}), space.known) in signs for m, c in form.terms.items()}
    part = Form({m: c for m, c in form.terms.items() if terms[m]})
    rest = form - part
    return never_negative(part * part - rest * rest, space, depth - 1) if part else "any"


def _by_coordinates(form: Form, space: Space) -> str:
    """The sign of the form itself, or of Σᵢ f(qᵢ, kᵢ) + Σᵢⱼ g(qᵢ, kᵢ, qⱼ, kⱼ) + the rest."""
    whole = _sum_of_squares(form, space)
    levels = _levels(form, space) if whole == "any" else None
    if levels is None:
        return whole
    signs = [_sum_of_squares(x, space) for x in levels if x]
    if "any" in signs:
        return "any"
    strict = "positive" in signs and not space.places  # without named places there is a coordinate
    return "positive" if strict else "non-negative"


def _levels(form: Form, space: Space) -> list[Form] | None:
    """The terms of a form without a sum over coordinates, with one, and with two."""
    found = [Form({}), Form({}), Form({})]
    for m, c in form.terms.items():
        sums = [(a, e) for a, e in m if a[0] == "sum" or a == REST]
        if any(e.denominator != 1 or e < 0 for _, e in sums) or sum(e for _, e in sums) > 2:
            return None
        inner = [UNIT if a == REST else a[1] for a, e in sums for _ in range(int(e))]
        outside = Form({m - set(sums): c})
        orders = set(itertools.permutations(range(len(inner))))
        for order in orders:
            term = outside.times(Fraction(1, len(orders)))
            for i, part in zip(order, inner, strict=True):
                term = term * relabelled(Form({part: Fraction(1)}), {BOUND: f"{BOUND}{i}"}, space)
            found[len(inner)] += term
    return found


def _sum_of_squares(form: Form, space: Space) -> str:
    """Whether the form is zᵀGz for the roots z of its terms, with G positive semi-definite."""
    roots = {m: u for m, c in form.terms.items() if c > 0 and (u := _root(m, space)) is not None}
    if len(roots) > MOST_SQUARES:
        return "any"
    keys = list(roots)
    for choice in _products(form, [roots[m] for m in keys], keys):
        matrix = [[Fraction(0)] * len(keys) for _ in keys]
        for i, m in enumerate(keys):
            matrix[i][i] = form.terms[m]
        for i, j, c in choice:
            matrix[i][j] += c * _HALF
            matrix[j][i] += c * _HALF
        if not is_psd(matrix):
            continue
        for i, m in enumerate(keys):  # a square that is never 0 may leave something over
            if form_sign(Form({m: Fraction(1)}), space.known) == "positive":
                matrix[i][i] *= Fraction(1023, 1024)
                if is_psd(matrix):
                    return "positive"
                matrix[i][i] = form.terms[m]
        return "non-negative"
    return "any"


def _products(
    form: Form, roots: list[Monomial], squares: list[Monomial]
) -> Iterator[list[tuple[int, int, Fraction]]]:
    """Ways to write every term that is no square as c·u·v for two of the roots."""
    pairs: dict[Monomial, list[tuple[int, int, Fraction]]] = {}
    for i, j in itertools.combinations(range(len(roots)), 2):
        product = Form({roots[i]: Fraction(1)}) * Form({roots[j]: Fraction(1)})
        if len(product.terms) == 1:
            ((m, c),) = product.terms.items()
            pairs.setdefault(m, []).append((i, j, 1 / c))
    mixed = [(m, c) for m, c in form.terms.items() if m not in squares]
    ways = itertools.product(*(pairs.get(m, []) for m, _ in mixed))
    for way in itertools.islice(ways, MOST_CHOICES):
        yield [(i, j, c * x) for (i, j, x), (_, c) in zip(way, mixed, strict=True)]


def _root(m: Monomial, space: Space) -> Monomial | None:
    """√m, if it is a real number wherever m is one."""
    for a, e in m:
        even = e.denominator % 2 == 0 or (e / 2).denominator == 1
        if not even and sign_of(a, space.known) not in ("positive", "non-negative"):
            return None
    return frozenset((a, e / 2) for a, e in m)
