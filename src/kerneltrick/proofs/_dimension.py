"""Decide how many features a map has, and how many a kernel needs."""

from __future__ import annotations

import functools
from fractions import Fraction
from typing import Any, NamedTuple

from kerneltrick import costs
from kerneltrick.proofs._coefficients import table
from kerneltrick.proofs._derive import assumptions
from kerneltrick.proofs._form import NotNormalError
from kerneltrick.proofs._identity import decide_equation
from kerneltrick.proofs._normal import Space, scalar
from kerneltrick.proofs._psd_form import is_psd
from kerneltrick.proofs._search import FoundValues
from kerneltrick.proofs._statement import Statement, breaks
from kerneltrick.proofs._symbolic import Kernel, KernelLike, Phi, PhiLike
from kerneltrick.proofs._sympy import Expr, sympy, write
from kerneltrick.proofs._syntax import ClaimError, Node, names, place, read_expression
from kerneltrick.proofs._verdict import Counterexample, Derivation, Verdict

NO_MAP = "it is not positive semi-definite, so it is not the kernel of any real map"


def check_dimension(
    subject: PhiLike | KernelLike,
    claim: int | str,
    d: int | None = None,
    *,
    minimal: bool = False,
) -> Verdict:
    """Decide whether a map has the claimed number of features, such as "C(d+2, 2)".

    With `minimal`, the subject is a polynomial kernel, and the claim is about the smallest number
    of features of an exact real map. That number is the rank of the kernel's coefficients of
    q^α·k^β. The claim holds for every dimension unless `d` is given.

    >>> print(check_dimension("taylor:order=2", "d**2"))
    FALSE: taylor:order=2 has d**2 features
      it has d²/2 + 3·d/2 + 1
      counterexample: d = 1, features = 3, claimed = 1
      assumed: all numbers are real; d is a whole number ≥ 1
    """
    text = str(claim)
    claimed = read_expression(text)
    for name in sorted(names(claimed) - {"d"}):
        at = place(claimed, name)
        raise ClaimError(text, at, f"a number of features depends only on d, not on {name}")
    verb = "needs" if minimal else "has"
    counter = _rank(subject, d) if minimal else _count(subject, d)
    label = f"{counter.text} {verb} {text} features" + ("" if d is None else f" for d = {d}")
    if isinstance(counter.number, str):
        if counter.none:
            return Verdict.false(label, Derivation(counter.number))
        return Verdict.undecided(label, counter.number)
    statement = Statement(text, counter.number, "=", claimed, (), d)
    found = decide_equation(statement)
    shown = _shown(counter.number, d)
    least = "at least " if minimal else ""
    if isinstance(found, FoundValues):
        if d is not None:
            shown += f" for d = {d}"
        values = {"d": found.d, **found.sides("features", "claimed")}
        example = Counterexample(
            f"it {verb} {least}{shown}",
            values,
            lambda: breaks(statement, found.d, found.point) is not None,
            assumptions(statement),
        )
        return Verdict.false(label, example)
    if isinstance(found, str):
        return Verdict.undecided(label, found)
    span = "for every d: the same polynomial" if d is None else f"for d = {d}"
    reason = f"it {verb} {shown} {span}"
    return Verdict.true(label, Derivation(reason, found.assumptions))


class _Counter(NamedTuple):
    """A number of features as an expression in d, or the reason why none is known.

    If it is proven that there is no such number, `none` is True."""

    text: str
    number: Node | str
    none: bool = False


def _count(subject: Any, d: int | None) -> _Counter:
    """The number of features that a map has."""
    phi = Phi(subject)
    if phi.node is not None:
        return _Counter(phi.text, _of_list(phi.node))
    if phi.map is not None and not phi.map.has_features:
        return _Counter(
            phi.text, "softmax is computed without features; e^{q·k} has infinitely many", True
        )
    if phi.map is not None:
        known = costs.feature_cost(phi.map, 1)
        if known.counted:
            return _Counter(phi.text, _of_polynomial(known.features))
        if d is not None:
            return _Counter(phi.text, _number(Fraction(phi.map.dim(d))))
        return _Counter(phi.text, "its number of features is known only for a given d")
    return _Counter(phi.text, "the features of a function cannot be counted")


def _of_list(features: Node) -> Node:
    """The sum over the items: the number of index tuples, d for a vector, 1 for a number."""
    one, parts = _number(Fraction(1)), []
    for item in features.parts:
        if item.kind == "for":
            parts.append(Node("sum", item.at, "", (item.parts[0], one)))
        else:
            parts.append(Node("name", item.at, "d") if is_vector(item) else one)
    return functools.reduce(lambda a, b: Node("op", 0, "+", (a, b)), parts)


def is_vector(node: Node) -> bool:
    """Whether an expression in x has one value per coordinate."""
    if node.kind == "name":
        return node.value == "x"
    if node.kind in ("index", "number", "sum"):
        return False
    if node.kind == "call" and node.value in ("dot", "norm", "norm2", "sum", "cosine"):
        return False
    if node.kind == "op" and node.value == "·":
        return any(map(is_vector, node.parts)) and not all(map(is_vector, node.parts))
    return any(map(is_vector, node.parts))


def _rank(subject: Any, d: int | None) -> _Counter:
    """The smallest number of features of an exact map."""
    kernel = Kernel(subject)
    if kernel.node is None:
        return _Counter(kernel.text, "features are counted only for kernels that are given as text")
    for name in sorted(kernel.parameters):
        raise ValueError(f"{name} has no value: write a number in its place")
    if d is None:
        count = _rank_formula(kernel.node)
        return _Counter(kernel.text, count, count == NO_MAP)
    try:
        form = scalar(kernel.node, Space({"q", "k"}, d, d))
    except (NotNormalError, ZeroDivisionError) as error:
        return _Counter(kernel.text, f"its coefficients are not known: {error}")
    found = table(form)
    if found is None:
        return _Counter(kernel.text, "it is not a polynomial, so its features cannot be counted")
    if not all(c.is_Rational for c in found.values()):
        return _Counter(kernel.text, "its coefficients are not fractions")
    count = _rank_of(found)
    return _Counter(kernel.text, count, count == NO_MAP)


def _rank_of(found: dict[Any, Expr]) -> Node | str:
    """The rank of the coefficients of q^α·k^β, if a real map has them at all."""
    sides = [
        (
            tuple((x[1:], e) for x, e in key if x[0] == "q"),
            tuple((x[1:], e) for x, e in key if x[0] == "k"),
        )
        for key in found
    ]
    keys = sorted({x for pair in sides for x in pair})
    matrix = [[Fraction(0)] * len(keys) for _ in keys]
    for (alpha, beta), c in zip(sides, found.values(), strict=True):
        matrix[keys.index(alpha)][keys.index(beta)] = Fraction(int(c.p), int(c.q))
    if not is_psd(matrix):
        return NO_MAP
    rank = sympy.Matrix(matrix).rank() if matrix else 0
    return _number(Fraction(int(rank)))


def _rank_formula(node: Node) -> Node | str:
    """Σ C(d+r−1, r) over the powers r of q·k that occur: their monomials are independent."""
    try:
        form = scalar(node, Space({"q", "k"}, None, 0))
    except (NotNormalError, ZeroDivisionError) as error:
        return f"its coefficients are not known: {error}"
    dot = ("sum", frozenset([(("any", "q", "*"), Fraction(1)), (("any", "k", "*"), Fraction(1))]))
    total = _number(Fraction(0))
    for m, c in form.terms.items():
        powers = dict(m)
        r = powers.pop(dot, Fraction(0))
        if powers or r.denominator != 1 or r < 0:
            return (
                "for every d it is known only for polynomials in q·k; give a dimension, for d = 2"
            )
        if c < 0:
            return NO_MAP
        count = read_expression(f"C(d + {int(r) - 1}, {int(r)})" if r > 1 else "d" if r else "1")
        total = Node("op", 0, "+", (total, count))
    return total


def _of_polynomial(polynomial: costs.Polynomial) -> Node:
    """A polynomial of the room `costs` as an expression in d."""
    total = _number(Fraction(0))
    for key, c in polynomial.terms.items():
        term = _number(c)
        for _, exponent in key:
            factor = Node("op", 0, "**", (Node("name", 0, "d"), _number(Fraction(exponent))))
            term = Node("op", 0, "*", (term, factor))
        total = Node("op", 0, "+", (total, term))
    return total


def _number(x: Fraction) -> Node:
    return Node("number", 0, x)


def _shown(count: Node, d: int | None) -> str:
    """The count as a polynomial in d, or as a number."""
    try:
        form = scalar(count, Space(set(), d, d or 0))
    except NotNormalError:
        return "another number"
    symbol = sympy.Symbol("d")
    terms = [
        sympy.Rational(c.numerator, c.denominator) * symbol ** int(sum(e for _, e in m))
        for m, c in form.terms.items()
    ]
    return write(sum(terms, sympy.Integer(0)))
