"""Compare polynomials in one dimension coefficient by coefficient, for refutations to show."""

from __future__ import annotations

from fractions import Fraction

from kerneltrick.proofs._derive import setting
from kerneltrick.proofs._form import Form, NotNormalError
from kerneltrick.proofs._normal import scalar
from kerneltrick.proofs._statement import Statement
from kerneltrick.proofs._sympy import Expr, subscript, sympy, write, write_monomial
from kerneltrick.proofs._syntax import Node

SHOWN = 8
Powers = tuple[tuple[str, int], ...]  # letters with exponents ≥ 1, in order
Table = dict[Powers, Expr]


def wrong_coefficients(statement: Statement, d: int) -> list[str] | None:
    """One line for each coefficient that differs; None if a side is not a polynomial here."""
    try:
        given = setting(statement, d)
        left = table(scalar(statement.left, given.space))
        right = table(scalar(statement.right, given.space))
    except (NotNormalError, ZeroDivisionError):
        return None
    if left is None or right is None:
        return None
    zero = sympy.Integer(0)
    if not any(key for t in (left, right) for key in t):
        return None
    letters = sorted({x for t in (left, right) for key in t for x, _ in key}, key=_rank)

    def powers(key: Powers) -> list[int]:
        return [dict(key).get(x, 0) for x in letters]

    wrong = [
        key
        for key in sorted({*left, *right}, key=powers, reverse=True)
        if left.get(key, zero) != right.get(key, zero)
    ]
    return [
        f"{write_monomial([(x, dict(key)[x]) for x in letters if x in dict(key)])}: left has "
        f"{write(left.get(key, zero))}, right has {write(right.get(key, zero))}"
        for key in wrong
    ]


def table(form: Form) -> Table | None:
    """The coefficient of each product of letters and coordinates; None for other expressions."""
    found: Table = {}
    for m, c in form.terms.items():
        powers, value = dict[str, int](), sympy.Rational(c.numerator, c.denominator)
        for a, e in m:
            if a[0] == "prime":
                value *= sympy.Integer(a[1]) ** sympy.Rational(e.numerator, e.denominator)
            elif a[0] == "pi":
                value *= sympy.pi ** sympy.Rational(e.numerator, e.denominator)
            elif a[0] in ("name", "at") and e.denominator == 1 and e > 0:
                powers[a[1] if a[0] == "name" else subscript(a[1], a[2])] = int(e)
            else:
                return None
        key = tuple(sorted(powers.items()))
        found[key] = found.get(key, sympy.Integer(0)) + value
    return found


def as_sympy(form: Form) -> Expr | None:
    """A form as a sympy expression; None if it contains more than letters, roots and d."""
    total = sympy.Integer(0)
    for m, c in form.terms.items():
        term = sympy.Rational(c.numerator, c.denominator)
        for a, e in m:
            if a[0] not in ("name", "rest", "prime", "pi"):
                return None
            base = {"rest": sympy.Symbol("d"), "pi": sympy.pi}.get(a[0])
            if base is None:
                base = sympy.Symbol(a[1]) if a[0] == "name" else sympy.Integer(a[1])
            term *= base ** sympy.Rational(e.numerator, e.denominator)
        total += term
    return total


def as_expression(form: Form) -> Node:
    """A form in letters and d as an expression in the language of claims."""
    total = Node("number", 0, Fraction(0))
    for m, c in form.terms.items():
        term = Node("number", 0, c)
        for a, e in sorted(m, key=str):
            base = {"rest": Node("name", 0, "d"), "pi": Node("name", 0, "pi")}.get(a[0])
            if base is None and a[0] == "name":
                base = Node("name", 0, a[1])
            if base is None and a[0] == "prime":
                base = Node("number", 0, Fraction(a[1]))
            if base is None:
                raise NotNormalError(f"{a[0]} cannot be written as an expression")
            factor = Node("op", 0, "**", (base, Node("number", 0, e)))
            term = Node("op", 0, "*", (term, factor))
        total = Node("op", 0, "+", (total, term))
    return total


def _rank(letter: str) -> tuple[bool, str]:
    return (not letter.startswith("q"), letter)


def shown(lines: list[str]) -> tuple[str, ...]:
    rest = [f"and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
    return (*lines[:SHOWN], *rest)
