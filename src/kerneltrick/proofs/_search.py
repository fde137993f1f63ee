"""Search for values that break a statement: small whole numbers first, then all sizes.

Nothing here is trusted. `_statement.breaks` evaluates every point exactly.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from kerneltrick.proofs._derive import difference, fixed_dimension, setting
from kerneltrick.proofs._form import Atom, Form, NotNormalError
from kerneltrick.proofs._normal import BOUND, REST
from kerneltrick.proofs._number import Number, exact_root
from kerneltrick.proofs._statement import (
    FLIPPED,
    Condition,
    Point,
    Statement,
    breaks,
    explanations,
    speaks_of,
)
from kerneltrick.proofs._syntax import Node, degree, largest_index, names

TRIES = 80  # points per dimension
OWN_TRIES = 20  # further points, made of the numbers in the statement
MOST_DIMENSIONS = 40
Pool = Sequence[int | Fraction]
_POOLS: tuple[Pool, ...] = (
    (1, 2, 3),
    (1, -1),
    (0, 1, -1),
    (1, 2, 3, -1, -2, -3),
    (0, 1, -1, 2),
    (Fraction(1, 2), Fraction(-1, 2), Fraction(1, 3), 2, -1, Fraction(3, 2)),
    (2, 3, 5, 7, -2, -3, -5, 11),
    (50, -50, 1, -1, Fraction(1, 100), Fraction(-1, 100)),
    (1000, -1000, 1, Fraction(1, 1000), 0),
    (10**7, -(10**7), 1, Fraction(1, 10**7), Fraction(-1, 10**7)),
    (Fraction(9, 10), Fraction(11, 10), Fraction(-9, 10), Fraction(-11, 10)),
)


class FoundValues(NamedTuple):
    """Values that break a statement, with the dimension and both sides there."""

    d: int
    point: Point
    left: Number
    right: Number

    def shown(self, statement: Statement) -> dict[str, Any]:
        """The values of vectors and letters, and d if no vector shows it."""
        values = {
            name: [plain(x) for x in value] if isinstance(value, list) else plain(value)
            for name, value in self.point.items()
        }
        if statement.speaks_of_d and not any(isinstance(x, list) for x in values.values()):
            values = {"d": self.d, **values}
        return values

    def sides(self, left: str, right: str) -> dict[str, Any]:
        """Both sides, and their difference if rounding would hide it."""
        values = {left: plain(self.left), right: plain(self.right)}
        rounded = [f"{float(x):.6g}" for x in (self.left, self.right)]
        if rounded[0] == rounded[1]:
            values[f"{left} − {right}"] = plain(self.left - self.right)
        return values


def plain(x: Fraction | Number) -> int | str | float:
    """A number as it is shown: whole, as a fraction, or rounded."""
    value = x.value if isinstance(x, Number) else x
    if not isinstance(value, Fraction):
        rounded = float(x)
        whole = abs(rounded) < 10**15 and abs(rounded - round(rounded)) < 1e-12
        return round(rounded) if whole else rounded
    if value.denominator == 1 and abs(value) < 10**15:
        return int(value)
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > 70:
        return float(Number(value))  # Python refuses to print thousands of digits
    text = str(value)
    return text if len(text) <= 20 else float(x)


def search(statement: Statement, tries: int = TRIES) -> FoundValues | None:
    """Find a point that breaks the statement."""
    for d in dimensions(statement):
        for point in points(statement, d, tries):
            sides = breaks(statement, d, point)
            if sides is not None:
                return FoundValues(d, point, *sides)
    return None


NOTHING = "no values were found that meet all conditions and for which both sides are defined"


def speaks_of_something(statement: Statement) -> bool:
    """Whether some point meets the conditions and gives both sides a value.

    A statement without such a point would be true only because it says nothing."""
    widths = dimensions(statement) or [largest_index(*statement.nodes)]
    return any(
        speaks_of(statement, d, point) for d in widths for point in points(statement, d, TRIES)
    )


def points(statement: Statement, d: int, tries: int) -> Iterator[dict[str, Any]]:
    """Points inside the bounds of the conditions, for all names that no condition defines."""
    vectors, letters = _free(statement)
    bounds = {name: _bounds(statement, name) for name in letters}
    given = setting(statement)
    solved = {
        name: form
        for name, form in given.solved.items()
        if name in letters and name not in explanations(statement)
    }
    lengths = {x: r for x in vectors if (r := _length(given.space.sums, x)) is not None}
    chooser = random.Random(d)
    pools = list(itertools.islice(itertools.cycle(_POOLS), tries))
    if tries == TRIES:
        pools += [_near(statement)] * OWN_TRIES
    for i, pool in enumerate(pools if vectors or letters else pools[:1]):
        point = _point(i, pool, d, vectors, letters, bounds, chooser)
        for name, form in solved.items():
            value = _rational(form, point, d)
            if value is not None:
                point[name] = value
        for name, length in lengths.items():
            point[name] = _turned(point[name], length)
        yield point


def _length(sums: Mapping[Atom, Form], name: str) -> Fraction | None:
    """The length that conditions such as norm2(q) = 4 give a vector, if it is a fraction."""
    square = sums.get(("sum", frozenset([(("any", name, BOUND), Fraction(2))])))
    constant = None if square is None else square.constant
    return None if constant is None or constant < 0 else exact_root(constant, 2)


def _turned(vector: list[Fraction], length: Fraction) -> list[Fraction]:
    """A vector of this length: the first axis, mirrored at the plane that the vector is normal to.

    Its coordinates are fractions again."""
    square = sum(x * x for x in vector) or Fraction(1)
    sign = -1 if vector[0] < 0 else 1
    axis = (Fraction(i == 0) for i in range(len(vector)))
    return [
        sign * length * (e - 2 * vector[0] * x / square) for e, x in zip(axis, vector, strict=True)
    ]


def dimensions(statement: Statement) -> list[int]:
    """The dimensions to try: small ones, and more than a polynomial in d can have zeros."""
    fixed = fixed_dimension(statement)
    if fixed is not None:
        return [fixed]
    if not statement.speaks_of_d:
        return [1]
    least = largest_index(*statement.nodes)
    top = max(least + 3, least + _zeros(statement) + 1, _largest_number(statement))
    return list(range(least, min(top, MOST_DIMENSIONS) + 1))


@functools.lru_cache(maxsize=256)
def _zeros(statement: Statement) -> int:
    """The degree of the difference in d, which bounds its number of zeros."""
    try:
        form = difference(statement, setting(statement))
    except (NotNormalError, ZeroDivisionError):
        named = any("d" in names(node) for node in statement.nodes)
        return sum(degree(x) for x in (statement.left, statement.right)) if named else 0
    powers = (e for m in form.terms for a, e in m if a == REST)
    return int(max(powers, default=Fraction(0)))


def _largest_number(statement: Statement) -> int:
    """A little more than the largest bound on d in a condition."""
    found = [0]
    for left, _, right in statement.conditions:
        if "d" in names(left) | names(right):
            found += [int(x.value) + 3 for x in (left, right) if isinstance(x.value, Fraction)]
    return max(found)


def _free(statement: Statement) -> tuple[list[str], list[str]]:
    """The vectors and letters that no condition defines."""
    explained = explanations(statement)
    vectors = sorted((x for x in statement.vectors if x not in explained), reverse=True)
    return vectors, sorted(x for x in statement.letters if x not in explained)


Bounds = tuple[Fraction | None, Fraction | None]


def _bounds(statement: Statement, name: str) -> Bounds:
    low: Fraction | None = None
    high: Fraction | None = None
    for condition in statement.conditions:
        found = _bound(condition, name)
        if found is None:
            continue
        relation, value = found
        if relation in (">", ">="):
            low = value if low is None else max(low, value)
        elif relation in ("<", "<="):
            high = value if high is None else min(high, value)
    return low, high


def _bound(condition: Condition, name: str) -> tuple[str, Fraction] | None:
    left, relation, right = condition
    if right.kind == "name" and right.value == name:
        left, relation, right = right, FLIPPED[relation], left
    if left.kind != "name" or left.value != name:
        return None
    value = _number(right)
    return None if value is None else (relation, value)


def _number(node: Node) -> Fraction | None:
    if node.kind == "number" and isinstance(node.value, Fraction):
        return node.value
    if node.kind == "neg":
        inner = _number(node.parts[0])
        return None if inner is None else -inner
    return None


def _near(statement: Statement) -> Pool:
    """Numbers around those that the statement names, where its pieces may meet."""
    named = set[Fraction]().union(*map(_numbers, statement.nodes))
    return (0, *(s * y for x in sorted(named) for y in (x - 1, x, x + 1, 2 * x) for s in (1, -1)))


def _numbers(node: Node) -> set[Fraction]:
    own = {node.value} if isinstance(node.value, Fraction) else set[Fraction]()
    return own.union(*map(_numbers, node.parts))


def _point(
    i: int,
    pool: Pool,
    d: int,
    vectors: list[str],
    letters: list[str],
    bounds: Mapping[str, Bounds],
    chooser: random.Random,
) -> dict[str, Any]:
    """The i-th point. The first counts 1, 2, 3, …; the others are drawn from pools of numbers."""
    counted: Iterator[int] = iter(range(1, 10**6))
    point: dict[str, Any] = {}
    for name in vectors:
        point[name] = [
            Fraction(next(counted) if i == 0 else chooser.choice(pool)) for _ in range(d)
        ]
    for place, name in enumerate(letters):
        value = Fraction(2 + place if i == 0 else chooser.choice(pool))
        point[name] = _inside(value, *bounds[name])
    return point


def _inside(value: Fraction, low: Fraction | None, high: Fraction | None) -> Fraction:
    """Move a number into the bounds."""
    if low is not None and high is not None:
        return low + (high - low) * (abs(value) / (1 + abs(value)))
    if low is not None:
        return value if value > low else low + abs(value)
    if high is not None:
        return value if value < high else high - abs(value)
    return value


def _rational(form: Form, point: Point, d: int) -> Fraction | None:
    """The value of a form in letters at a point, if it is a fraction."""
    total = Fraction(0)
    for m, c in form.terms.items():
        for a, e in m:
            base = point.get(a[1]) if a[0] == "name" else Fraction(d) if a[0] == "rest" else None
            if base is None or isinstance(base, list) or e.denominator != 1:
                return None
            if base == 0 and e < 0:
                return None
            c *= base ** int(e)
        total += c
    return total
