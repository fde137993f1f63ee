"""Find the length from which one algorithm needs fewer operations than another."""

from __future__ import annotations

import math
from fractions import Fraction

from kerneltrick.costs._cost import Cost
from kerneltrick.costs._polynomial import Number, Polynomial


def crossover(slow: Cost, fast: Cost, **sizes: Number) -> int | None:
    """The smallest n from which `fast` always takes fewer multiply-adds; None if there is none.

    >>> from kerneltrick import costs
    >>> costs.crossover(costs.softmax(), costs.linear("poly:degree=2"), D=32, M=80)
    832
    """
    gain = _with_sizes(slow, sizes) - _with_sizes(fast, sizes)
    unknown = [s for s in gain.symbols if s != "n"]
    if unknown:
        raise ValueError(f"crossover needs a size for {', '.join(unknown)}")
    if gain.degree("n") > 2:
        raise ValueError(f"crossover works for counts up to n², not {gain}")
    c, b, a = (Fraction(gain.coefficient("n", p).at()) for p in range(3))
    scale = math.lcm(a.denominator, b.denominator, c.denominator)
    return _beyond_roots(*(int(x * scale) for x in (a, b, c)))


def _beyond_roots(a: int, b: int, c: int) -> int | None:
    """The smallest n ≥ 1 from which a·n² + b·n + c > 0."""
    if a == 0:
        if b == 0:
            return 1 if c > 0 else None
        return max(-c // b, 0) + 1 if b > 0 else None
    if a < 0:
        return None
    inside = b * b - 4 * a * c
    return 1 if inside < 0 else max((-b + math.isqrt(inside)) // (2 * a), 0) + 1


def _with_sizes(cost: Cost, sizes: dict[str, Number]) -> Polynomial:
    given = dict(sizes)
    for s, expression in cost.identities.items():
        if s not in given and all(x in given for x in expression.symbols):
            given[s] = expression.at(**given)
    return cost.multiply_adds.subs(**given)
