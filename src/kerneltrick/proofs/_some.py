"""Decide whether letters can be chosen so that an equation holds."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import NamedTuple

from kerneltrick.proofs._derive import Setting, assumptions, derive, setting, span
from kerneltrick.proofs._form import Atom, Form, Monomial, NotNormalError
from kerneltrick.proofs._identity import decide_equation
from kerneltrick.proofs._normal import scalar
from kerneltrick.proofs._search import dimensions, speaks_of_something
from kerneltrick.proofs._statement import Statement
from kerneltrick.proofs._symbolic import NotSymbolicError, as_node
from kerneltrick.proofs._sympy import Expr, real, subscript, sympy, write, write_monomial
from kerneltrick.proofs._syntax import replaced
from kerneltrick.proofs._verdict import Derivation, Verdict

SHOWN = 8
WIDTHS = 4  # dimensions in which to look for a proof that no choice works
_Table = dict[Monomial, Expr]


def check_some(claim: str, statement: Statement, some: Sequence[str]) -> Verdict:
    """Decide whether real numbers for the letters in `some` make an equation hold.

    The sides are compared coefficient by coefficient. If a choice is found, it is inserted and
    the equation is derived like any other claim. If the equations have no common root in one
    dimension, no choice works, even if the choice may depend on d.
    """
    decide_equation(statement)  # refuses what cannot be read
    letters = ", ".join(some)
    try:
        found = _equations(statement, setting(statement), some)
    except (NotNormalError, ZeroDivisionError) as error:
        return Verdict.undecided(claim, f"no normal form: {error}")
    if found is None:
        return Verdict.undecided(claim, f"the sides are not polynomials in {letters}")
    chosen = _choice(claim, statement, some, found)
    if chosen is not None:
        return chosen
    for d in [statement.d] if statement.d is not None else dimensions(statement)[:WIDTHS]:
        given = setting(statement, d)
        try:
            at = _equations(statement, given, some)
        except (NotNormalError, ZeroDivisionError):
            continue
        if at is not None and _unsolvable(at, some):
            where = f" ({span(statement, given)})" if statement.speaks_of_d else ""
            reason = f"no real {letters} satisfies all equations{where}"
            return Verdict.false(claim, Derivation(reason, assumptions(statement)), at.needs)
    missing = f"no choice of {letters} was found, and no proof that there is none"
    return Verdict.undecided(claim, missing, found.needs)


class _Equations(NamedTuple):
    """The equations that the letters must satisfy, and the same in words."""

    equations: list[Expr]
    needs: tuple[str, ...]
    others: bool  # whether the choice might depend on further letters


def _equations(statement: Statement, given: Setting, some: Sequence[str]) -> _Equations | None:
    left, right = (_table(scalar(x, given.space), some) for x in (statement.left, statement.right))
    if left is None or right is None:
        return None
    zero = sympy.Integer(0)
    keys = [key for key in {**left, **right} if left.get(key, zero) != right.get(key, zero)]
    keys.sort(key=_order)
    needs = tuple(
        f"{_name(key)} needs {write(left.get(key, zero))} = {write(right.get(key, zero))}"
        for key in keys[:SHOWN]
    )
    others = any(a[0] == "name" for key in keys for a, _ in key)
    equations = [sympy.expand(left.get(key, zero) - right.get(key, zero)) for key in keys]
    return _Equations(equations, needs, others)


def _table(form: Form, some: Sequence[str]) -> _Table | None:
    """The coefficients of monomials in the other names, as polynomials in the letters to choose."""
    found: _Table = {}
    for m, c in form.terms.items():
        value, rest = sympy.Rational(c.numerator, c.denominator), set[tuple[Atom, Fraction]]()
        for a, e in m:
            if a[0] == "name" and a[1] in some:
                if e.denominator != 1 or e < 0:
                    return None
                value *= real(a[1]) ** int(e)
            elif a[0] in ("prime", "pi"):
                base = sympy.Integer(a[1]) if a[0] == "prime" else sympy.pi
                value *= base ** sympy.Rational(e.numerator, e.denominator)
            elif a[0] in ("at", "rest", "name") or (a[0] == "sum" and _plain_sum(a)):
                rest.add((a, e))
            else:
                return None
        key = frozenset(rest)
        found[key] = found.get(key, sympy.Integer(0)) + value
    return found


def _plain_sum(a: Atom) -> bool:
    """Whether a sum contains only coordinates, so that no letter hides in it."""
    return all(x[0] == "any" for x, _ in a[1])


def _choice(
    claim: str,
    statement: Statement,
    some: Sequence[str],
    found: _Equations,
) -> Verdict | None:
    unknowns = [real(name) for name in some]
    equations = found.equations
    for solution in sympy.solve(equations, unknowns, dict=True) if equations else [{}]:
        values = [
            sympy.sympify(solution.get(x, 1)).subs(dict.fromkeys(unknowns, 1)) for x in unknowns
        ]
        if not all(v.is_real for v in values):
            continue
        try:
            chosen = {name: as_node(v) for name, v in zip(some, values, strict=True)}
        except NotSymbolicError:
            continue
        put = statement._replace(
            left=replaced(statement.left, chosen), right=replaced(statement.right, chosen)
        )
        derived = derive(put)
        if isinstance(derived, Derivation) and speaks_of_something(put):
            text = ", ".join(f"{x} = {write(v)}" for x, v in zip(some, values, strict=True))
            reason = f"with {text} {derived.reason}"
            return Verdict.true(claim, Derivation(reason, derived.assumptions), found.needs)
    return None


def _unsolvable(found: _Equations, some: Sequence[str]) -> bool:
    """Whether the equations have no common real root, for any values of the other letters."""
    unknowns = [real(name) for name in some]
    if found.others or not found.equations:
        return False
    if not all(x.is_polynomial(*unknowns) and _rational(x, unknowns) for x in found.equations):
        return False
    for element in sympy.groebner(found.equations, *unknowns, order="lex").exprs:
        free = element.free_symbols
        if not free or (len(free) == 1 and sympy.Poly(element).count_roots() == 0):
            return True
    return False


def _rational(x: Expr, unknowns: list[Expr]) -> bool:
    return all(c.is_Rational for c in sympy.Poly(x, *unknowns).coeffs())


def _order(key: Monomial) -> tuple[int, str]:
    return (sum(int(e) for _, e in key), _name(key))


def _name(key: Monomial) -> str:
    """x₁·x₂ for q₁q₂k₁k₂; other monomials unchanged."""
    powers: dict[tuple[str, int], int] = {}
    others = []
    for a, e in key:
        if a[0] == "at" and e.denominator == 1:
            powers[a[1], a[2]] = int(e)
        else:
            others.append(_atom(a) + (f"^{e}" if e != 1 else ""))
    mirrored = {i: e for (v, i), e in powers.items() if v == "q"}
    if not others and mirrored == {i: e for (v, i), e in powers.items() if v == "k"}:
        return write_monomial([(subscript("x", i), e) for i, e in sorted(mirrored.items())])
    own = [(subscript(v, i), e) for (v, i), e in sorted(powers.items())]
    return "·".join(x for x in (write_monomial(own) if own else "", *sorted(others)) if x)


def _atom(a: tuple[object, ...]) -> str:
    if a[0] == "rest":
        return "d"
    if a[0] == "sum":
        inner = sorted(f"{x[1]}ᵢ" + (f"^{e}" if e != 1 else "") for x, e in a[1])  # type: ignore[attr-defined]
        return f"Σ{''.join(inner)}"
    return str(a[-1])
