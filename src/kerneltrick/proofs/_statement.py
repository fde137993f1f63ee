"""Statements: a relation between two expressions under conditions.

A statement is true only if the normal forms of its sides are the same. It is false only if exact
evaluation finds values for which all conditions hold and the relation does not. The search for such
values may be clever, because it is not trusted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from kerneltrick.proofs._evaluate import Scope, evaluate, scalar_value, vector_names
from kerneltrick.proofs._number import EXACTLY, Number, exactly
from kerneltrick.proofs._syntax import ClaimError, Node, Side, names

Point = Mapping[str, Any]  # letters are fractions, vectors are lists of fractions
_BROKEN = {
    "=": lambda s: s != 0,
    "!=": lambda s: s == 0,
    "<": lambda s: s >= 0,
    "<=": lambda s: s > 0,
    ">": lambda s: s <= 0,
    ">=": lambda s: s < 0,
}
FLIPPED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "=": "=", "!=": "!="}


class Condition(NamedTuple):
    """A condition after `where`: left relation right."""

    left: Node
    relation: str
    right: Node


class Statement(NamedTuple):
    """left relation right, for all values that meet the conditions, in dimension d or in all."""

    text: str
    left: Node
    relation: str
    right: Node
    conditions: tuple[Condition, ...] = ()
    d: int | None = None
    scalars: frozenset[str] = frozenset()  # names of vectors that are numbers here

    @property
    def nodes(self) -> list[Node]:
        said = (x for c in self.conditions for x in (c.left, c.right))
        return [self.left, self.right, *said]

    @property
    def vectors(self) -> set[str]:
        return set[str]().union(*(vector_names(node) for node in self.nodes)) - self.scalars

    @property
    def letters(self) -> set[str]:
        said = set[str]().union(*(names(node) for node in self.nodes))
        return said - self.vectors - {"pi", "π", "d"}

    @property
    def speaks_of_d(self) -> bool:
        """Whether the dimension matters because of a vector, a sum, or d itself."""
        return bool(self.vectors) or any("d" in names(x) or _sums(x) for x in self.nodes)


def _sums(node: Node) -> bool:
    return node.kind == "sum" or any(map(_sums, node.parts))


def read_conditions(text: str, said: Sequence[Sequence[Side]]) -> tuple[Condition, ...]:
    """All conditions after `where`."""
    found = []
    for sides in said:
        if len(sides) < 2:
            raise ClaimError(text, sides[0].node.at, "a condition has the form c = 1 or c > 0")
        for before, side in itertools.pairwise(sides):
            if side.relation not in _BROKEN:
                raise ClaimError(
                    text,
                    side.node.at,
                    f"a condition uses =, <, <=, >, >= or !=, not {side.relation}",
                )
            found.append(Condition(before.node, side.relation, side.node))
    return tuple(found)


def breaks(statement: Statement, d: int, point: Point) -> tuple[Number, Number] | None:
    """Both sides at a point, if all conditions hold there and the relation fails, exactly."""
    if not _meets_conditions(statement, d, point):
        return None
    sides = list[Number]()

    def gap() -> Number:
        sides[:] = sides_at(statement, d, point)
        return sides[0] - sides[1]

    found = exactly(gap)
    if found is None or not _BROKEN[statement.relation](found[0]):
        return None
    return sides[0], sides[1]


def speaks_of(statement: Statement, d: int, point: Point) -> bool:
    """Whether all conditions hold at a point and both sides have values there."""
    return _meets_conditions(statement, d, point) and _defined(
        lambda: sides_at(statement, d, point)
    )


def _meets_conditions(statement: Statement, d: int, point: Point) -> bool:
    """Whether all conditions hold at a point. A condition that defines a letter holds if the
    definition has a value there."""
    explained = explanations(statement)
    if not all(x in point or x in explained for x in statement.vectors):
        return False
    scope = list[Scope]()
    if not _defined(lambda: scope.append(_scope(statement, d, point))):
        return False
    for condition in statement.conditions:
        name = next((x for x, c in explained.items() if c is condition), None)
        if name is None:
            if not holds(condition, scope[-1]):
                return False
        elif not _defined(partial(evaluate, _explanation(condition, name), scope[-1])):
            return False
    return True


def _defined(evaluated: Callable[[], object]) -> bool:
    """Whether an evaluation gives a value at some precision."""

    def value() -> Number:
        evaluated()
        return Number(0)

    return exactly(value) is not None


def sides_at(statement: Statement, d: int, point: Point) -> list[Number]:
    """Both sides at a point, at the current precision."""
    scope = _scope(statement, d, point)
    return [scalar_value(x, scope) for x in (statement.left, statement.right)]


def explanations(statement: Statement) -> dict[str, Condition]:
    """The letters that a condition such as s = 1/√d defines, with that condition."""
    found: dict[str, Condition] = {}

    def reaches(name: str, node: Node) -> bool:
        said = names(node)
        return name in said or any(
            x in said and reaches(name, _explanation(c, x)) for x, c in found.items()
        )

    for condition in statement.conditions:
        if condition.relation != "=":
            continue
        for node, other in (
            (condition.left, condition.right),
            (condition.right, condition.left),
        ):
            name = str(node.value)
            if node.kind != "name" or name in ("d", "pi", "π") or name in found:
                continue
            if reaches(name, other):
                continue
            found[name] = condition
            break
    return found


def _explanation(condition: Condition, name: str) -> Node:
    is_left = condition.left.kind == "name" and condition.left.value == name
    return condition.right if is_left else condition.left


def _scope(statement: Statement, d: int, point: Point) -> Scope:
    """The values of names at a point. Names that a condition defines are evaluated from it."""
    explained = explanations(statement)
    vectors: dict[str, Any] = {
        name: [Number(x) for x in point[name]] for name in statement.vectors if name in point
    }
    missing = [name for name in explained if name in statement.vectors and name not in vectors]

    def letter(name: str) -> Number:
        if name == "d":
            return Number(d)
        if name in explained:
            value = evaluate(_explanation(explained[name], name), scope)
            assert isinstance(value, Number)
            return value
        return Number(point[name])

    scope = Scope(statement.text, vectors, letter, EXACTLY, Number, lambda x, p: x**p, d)
    for name in missing:
        vectors[name] = [Number(0)] * d  # a placeholder that marks it as a vector

    def evaluate_vector(name: str) -> None:
        """Evaluate a vector after the vectors that define it: q = k, k = x."""
        missing.remove(name)
        condition = explained[name]
        for other in sorted(_behind(_explanation(condition, name), explained)):
            if other in missing:
                evaluate_vector(other)
        value = evaluate(_explanation(condition, name), scope)
        if isinstance(value, Number):
            if not (value.exact and value.value == 0):
                raise ClaimError(
                    statement.text,
                    condition.right.at,
                    f"{name} is a vector, so it can only equal another vector or 0",
                )
            value = [Number(0)] * d
        vectors[name] = value

    while missing:
        evaluate_vector(missing[0])
    return scope


def _behind(node: Node, explained: Mapping[str, Condition]) -> set[str]:
    """The names that an expression depends on, also through definitions."""
    found, left = set[str](), sorted(names(node))
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            if name in explained:
                left += sorted(names(_explanation(explained[name], name)))
    return found


def holds(condition: Condition, scope: Scope) -> bool:
    """Whether a condition holds, decided exactly."""
    pairs = list[tuple[Number, Number]]()

    def gap(i: int) -> Number:
        sides = [evaluate(x, scope) for x in (condition.left, condition.right)]
        width = max((len(x) for x in sides if isinstance(x, list)), default=1)
        both = [x if isinstance(x, list) else [x] * width for x in sides]
        pairs[:] = list(zip(*both, strict=True))
        return pairs[i][0] - pairs[i][1]

    signs = list[int]()
    first = exactly(lambda: gap(0))
    if first is None:
        return False
    signs.append(first[0])
    for i in range(1, len(pairs)):
        found = exactly(lambda i=i: gap(i))  # type: ignore[misc]
        if found is None:
            return False
        signs.append(found[0])
    if condition.relation == "!=":
        return any(s != 0 for s in signs)
    return not any(_BROKEN[condition.relation](s) for s in signs)
