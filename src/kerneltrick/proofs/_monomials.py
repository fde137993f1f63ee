"""Compare polynomial maps and kernels coefficient by coefficient."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

from kerneltrick.proofs._sympy import Expr, sympy, write, write_monomial

Powers = tuple[int, ...]
Table = dict[tuple[Powers, Powers], Expr]  # the coefficient of q^α k^β


class Wrong(NamedTuple):
    """A monomial of q and k whose coefficients differ."""

    q_powers: Powers
    k_powers: Powers
    kernel: Expr
    found: Expr
    features: int  # how many features contain it


def feature_table(features: Sequence[Expr], xs: Sequence[Expr]) -> tuple[Table, dict[Powers, int]]:
    """The coefficients of q^α k^β in φ(q)·φ(k), and how many features contain x^α."""
    table: Table = {}
    uses: dict[Powers, int] = {}
    for feature in features:
        terms = polynomial_terms(feature, xs)
        for alpha in terms:
            uses[alpha] = uses.get(alpha, 0) + 1
        for (alpha, a), (beta, b) in itertools.product(terms.items(), repeat=2):
            key = (alpha, beta)
            table[key] = table.get(key, sympy.Integer(0)) + a * b
    return table, uses


def kernel_table(kernel: Expr, qs: Sequence[Expr], ks: Sequence[Expr]) -> Table:
    """The coefficients of q^α k^β in a polynomial kernel."""
    d = len(qs)
    return {
        (powers[:d], powers[d:]): c for powers, c in polynomial_terms(kernel, [*qs, *ks]).items()
    }


def polynomial_terms(expression: Expr, symbols: Sequence[Expr]) -> dict[Powers, Expr]:
    """The coefficient for each tuple of exponents. Raises ValueError for other expressions."""
    expanded = sympy.expand(expression)
    if not expanded.is_polynomial(*symbols):
        raise ValueError(f"{expression} is not a polynomial")
    if not expanded.free_symbols & set(symbols):
        return {} if expanded == 0 else {(0,) * len(symbols): expanded}
    return dict(sympy.Poly(expanded, *symbols, domain="EX").terms())


def wrong_monomials(kernel: Table, found: Table, uses: dict[Powers, int]) -> list[Wrong]:
    """All monomials whose coefficients differ, lowest degree first."""
    wrong = []
    for key in sorted({*kernel, *found}, key=lambda x: (sum(x[0]), [-e for e in x[0]], x[1])):
        wanted, has = kernel.get(key, sympy.Integer(0)), found.get(key, sympy.Integer(0))
        if not is_zero(wanted - has):
            alpha, beta = key
            wrong.append(Wrong(alpha, beta, wanted, has, uses.get(alpha, 0)))
    return wrong


def is_zero(expression: Expr) -> bool:
    """Whether a coefficient is zero: exactly, or to 1e-9 if it contains an unrecognised float."""
    expression = sympy.expand(expression)
    if expression == 0:
        return True
    if expression.is_number:
        if not expression.has(sympy.Float):
            return bool(sympy.nsimplify(sympy.radsimp(expression)) == 0)
        return abs(float(expression)) <= 1e-9
    return bool(sympy.simplify(expression) == 0)


def explain(wrong: Wrong, names: Sequence[str]) -> str:
    """One line with the monomial, both coefficients, and how to fix the map."""
    kernel, has = sympy.nsimplify(wrong.kernel), sympy.simplify(wrong.found)
    if wrong.q_powers != wrong.k_powers:
        left = write_monomial(list(zip([f"q{x}" for x in names], wrong.q_powers, strict=True)))
        right = write_monomial(list(zip([f"k{x}" for x in names], wrong.k_powers, strict=True)))
        return f"{left} with {right}: kernel has {write(kernel)}, φ·φ has {write(has)}{_mixed(has)}"
    monomial = write_monomial(list(zip([f"x{x}" for x in names], wrong.q_powers, strict=True)))
    line = f"{monomial}: kernel has {write(kernel)}, φ·φ has {write(has)}"
    if kernel.is_number and kernel < 0:
        return f"{line} → no real features give a negative coefficient"
    if is_zero(has):
        factor = "" if kernel == 1 and monomial != "1" else write(sympy.sqrt(kernel))
        feature = "·".join(x for x in (factor, monomial if monomial != "1" else "") if x)
        return f"{line} → the feature {feature} is missing"
    if is_zero(kernel):
        return f"{line} → drop this feature"
    factor = sympy.sqrt(sympy.nsimplify(kernel / has))
    which = "this feature" if wrong.features == 1 else f"its {wrong.features} features together"
    return f"{line} → scale {which} by {write(factor)}"


def _mixed(has: Expr) -> str:
    return "" if is_zero(has) else " → a feature adds two monomials that must stay separate"
