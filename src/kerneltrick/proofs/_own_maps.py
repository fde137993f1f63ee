"""The exact definitions that kerneltrick's own maps declare, as expressions for proofs.

Subclasses may change φ, so only the maps of kerneltrick itself are taken at their word.
"""

from __future__ import annotations

import functools
from fractions import Fraction

from kerneltrick import maps
from kerneltrick.proofs._sympy import Expr, sympy
from kerneltrick.proofs._syntax import Node, read_expression, read_features

MOST_SHOWN = 200  # the largest number of features written out to explain a mistake


def own_features(feature_map: maps.FeatureMap) -> Node | None:
    """The features of a map as an expression; None if they cannot be written as one."""
    text = feature_map.formula if maps.is_ours(feature_map) else None
    return None if text is None else read_features(text)


def own_kernel(feature_map: maps.FeatureMap) -> tuple[Node, str] | None:
    """φ(q)·φ(k) of a map as an expression in q·k, and the theorem it follows from."""
    form = feature_map.kernel_form if maps.is_ours(feature_map) else None
    if form is None:
        return None
    if form.coefficients is None:
        return read_expression("exp(q·k)"), form.why
    t = read_expression("q·k")
    base = _op("+", t, _number(form.shift)) if form.shift else t
    terms = [_term(c, base, r) for r, c in form.coefficients.items()]
    return functools.reduce(lambda a, b: _op("+", a, b), terms), form.why


def monomial_features(feature_map: maps.FeatureMap, xs: list[Expr]) -> list[Expr] | None:
    """The features of poly and taylor one by one, to explain what is wrong in a claim."""
    d = len(xs)
    found = feature_map.monomials(d) if maps.is_ours(feature_map) else None
    if found is None or feature_map.dim(d) > MOST_SHOWN:
        return None
    return [
        sympy.prod([sympy.sqrt(_rational(m.square)), *(xs[i - 1] for i in m.row if i)])
        for m in found
    ]


def _term(c: Fraction, base: Node, power: int) -> Node:
    """c·baseᵖ."""
    if power == 0:
        return _number(c)
    part = _op("**", base, _number(Fraction(power)))
    return part if c == 1 else _op("*", _number(c), part)


def _rational(x: Fraction) -> Expr:
    return sympy.Rational(x.numerator, x.denominator)


def _op(sign: str, left: Node, right: Node) -> Node:
    return Node("op", 0, sign, (left, right))


def _number(x: Fraction) -> Node:
    return Node("number", 0, x)
