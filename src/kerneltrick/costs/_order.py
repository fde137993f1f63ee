"""Decide exactly whether one count has the order of another.

All symbols are sizes ≥ 1, each of which may grow at its own pace: n = t^w₁, D = t^w₂, … for large
t. A monomial a is O(Σ b) if and only if for every admissible direction w some b has w·b ≥ w·a. By
linear programming duality, this holds if and only if a ≤ Σλ_b·b (λ ≥ 0, Σλ = 1), up to the
relations between the symbols. This is the inequality of weighted arithmetic and geometric means:
n·m ≤ n² + m². If it does not hold, the certificate of the linear program is a direction in which
the claim fails: a counterexample.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from kerneltrick.costs._polynomial import Polynomial

Relation = tuple[str, str]  # (small, large): small ≤ large
Direction = dict[str, int]  # symbol → exponent of t

_ZERO, _ONE = Fraction(0), Fraction(1)
_LESS = Fraction(1, 10**6)  # the exponent of log n relative to that of n


def missing_terms(
    count: Polynomial, claim: Polynomial, relations: Sequence[Relation] = ()
) -> list[tuple[Polynomial, Direction]]:
    """The monomials of a count that are not O(claim), each with a direction that proves it.

    >>> from kerneltrick.costs import symbols
    >>> n, D, M = symbols("n D M")
    >>> missing_terms(n**2 * D + n**2 * M, n**2 * D)
    [(<n²·M>, {'M': 1})]
    >>> missing_terms(n * D, n**2 + D**2)
    []
    """
    found = []
    for monomial in count.monomials():
        direction = _escape(monomial, list(claim.monomials()), relations)
        if direction is not None:
            found.append((monomial, direction))
    return found


def leading(count: Polynomial, relations: Sequence[Relation] = ()) -> Polynomial:
    """The monomials that are not dominated by others: the expression inside O(…).

    >>> from kerneltrick.costs import symbols
    >>> n, m, M = symbols("n m M")
    >>> print(leading(2 * n * m * M + 2 * n * m + m))
    n·m·M
    """
    kept = list(count.monomials())
    for monomial in reversed(list(kept)):
        others = [x for x in kept if x != monomial]
        if others and _escape(monomial, others, relations) is None:
            kept = others
    return sum(kept, Polynomial())


def _escape(
    monomial: Polynomial, bounds: Sequence[Polynomial], relations: Sequence[Relation]
) -> Direction | None:
    """A direction in which `monomial` outgrows all `bounds`; None if there is none."""
    used = {*monomial.symbols, *(s for x in bounds for s in x.symbols)}
    used |= {s for pair in relations for s in pair if used & set(pair)}
    names = sorted(used)
    if not bounds:
        return dict.fromkeys(names, 0)
    columns = [[*_exponents(x, names), _ONE] for x in bounds]
    for name in names:  # w ≥ 0
        columns.append([-_ONE if s == name else _ZERO for s in names] + [_ZERO])
    for small, large in relations:  # w_small ≤ w_large
        if small in used and large in used:
            row = [_ONE if s == small else -_ONE if s == large else _ZERO for s in names]
            columns.append([*row, _ZERO])
    certificate = _infeasible(columns, [*_exponents(monomial, names), _ONE])
    if certificate is None:
        return None
    weights = certificate[:-1]
    scale = math.lcm(*(x.denominator for x in weights))
    whole = [int(x * scale) for x in weights]
    shared = math.gcd(*whole) or 1
    return {s: x // shared for s, x in zip(names, whole, strict=True) if x}


def outgrows(
    term: Polynomial,
    bound: Polynomial,
    direction: Direction,
    relations: Sequence[Relation] = (),
) -> bool:
    """Whether a monomial outgrows every term of a bound if each size s is t^direction[s].

    >>> from kerneltrick.costs import symbols
    >>> n, D, M = symbols("n D M")
    >>> outgrows(n**2 * M, n**2 * D, {"M": 1}), outgrows(n * D, n**2 + D**2, {"n": 1, "D": 1})
    (True, False)
    """
    names = sorted({*term.symbols, *bound.symbols, *direction})
    weights = [direction.get(s, 0) for s in names]

    def growth(monomial: Polynomial) -> Fraction:
        pairs = zip(_exponents(monomial, names), weights, strict=True)
        return sum((e * w for e, w in pairs), _ZERO)

    admissible = all(direction.get(a, 0) <= direction.get(b, 0) for a, b in relations)
    top = growth(term)
    return (
        min(weights, default=0) >= 0
        and admissible
        and all(growth(x) < top for x in bound.monomials())
    )


def _exponents(monomial: Polynomial, names: Sequence[str]) -> list[Fraction]:
    (key,) = monomial.terms
    powers = dict(key)
    # A logarithm grows, but more slowly than any power of its size.
    return [Fraction(powers.get(s, 0)) * (_LESS if s.startswith("log ") else 1) for s in names]


def _infeasible(
    columns: Sequence[Sequence[Fraction]], target: Sequence[Fraction]
) -> list[Fraction] | None:
    """None if Σ xⱼ·columnⱼ = target for some x ≥ 0, else y with y·columnⱼ ≤ 0 and y·target > 0.

    The first phase of the simplex method in exact arithmetic, with Bland's rule.
    """
    count, rows = len(columns), len(target)
    signs = [-_ONE if value < 0 else _ONE for value in target]
    table = []
    for i in range(rows):
        unit = [_ONE if i == j else _ZERO for j in range(rows)]
        table.append([signs[i] * c[i] for c in columns] + unit + [abs(target[i])])
    goal = [-sum((row[j] for row in table), _ZERO) for j in range(count)]
    goal += [_ZERO] * rows + [-sum((row[-1] for row in table), _ZERO)]
    basis = list(range(count, count + rows))
    while True:
        enter = next((j for j in range(count + rows) if goal[j] < 0), None)
        if enter is None:
            break
        ratios = [
            (row[-1] / row[enter], basis[i], i) for i, row in enumerate(table) if row[enter] > 0
        ]
        leave = min(ratios)[2]  # there is always one, because the first phase is bounded
        pivot = table[leave][enter]
        table[leave] = [x / pivot for x in table[leave]]
        for row in (*(r for i, r in enumerate(table) if i != leave), goal):
            factor = row[enter]
            if factor:
                row[:] = [x - factor * y for x, y in zip(row, table[leave], strict=True)]
        basis[leave] = enter
    if goal[-1] == 0:
        return None
    return [s * (1 - goal[count + i]) for i, s in enumerate(signs)]
