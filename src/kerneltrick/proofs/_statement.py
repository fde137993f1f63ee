"""Statements: a relation between two expressions under conditions.

A statement is true only if the normal forms of its sides are the same. It is false only if exact
evaluation finds values for which all conditions hold and the relation does not. The search for such
values may be clever, because it is not trusted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from typing import Any, NamedTuple

from kerneltrick.proofs._evaluate import Scope, evaluate, scalar_value, vector_names
from kerneltrick.proofs._form import Form, NotNormalError, atom, cleared, order, rebuilt
from kerneltrick.proofs._normal import Space, Vector, normal, scalar
from kerneltrick.proofs._number import EXACTLY, Number, exactly
from kerneltrick.proofs._syntax import ClaimError, Node, Side, has_gaps, largest_index, names
from kerneltrick.proofs._verdict import DEFINED, REAL, WHOLE, Derivation

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
_PARTIAL = ("log", "sqrt", "cosine", "factorial")  # functions that are not defined everywhere


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


class Setting(NamedTuple):
    """The consequences of the conditions for the letters."""

    space: Space
    d: int | None
    impossible: str  # why no values meet the conditions, or empty
    solved: dict[str, Form]  # letters that a condition determines from the others


def setting(statement: Statement, d: int | None = None) -> Setting:
    """Solve the equations among the conditions and note the signs that they imply.

    A condition that cannot be used is ignored: what holds without it also holds with it."""
    fixed = fixed_dimension(statement) if d is None else d
    places = largest_index(*statement.nodes) if _names_a_place(*statement.nodes) else 0
    if fixed is not None and fixed < max(places, 1):
        return Setting(Space(set(), 1, 1), 1, f"d = {fixed} is too small", {})
    space = Space(statement.vectors, fixed, places)
    _note_signs(statement, space)
    solved: dict[str, Form] = {}
    impossible = ""
    for condition in statement.conditions:
        if condition.relation == "=":
            try:
                impossible = impossible or _equate(condition, space, solved)
            except (NotNormalError, ZeroDivisionError):
                continue
    _note_signs(statement, space)
    return Setting(space, fixed, impossible, solved)


def fixed_dimension(statement: Statement) -> int | None:
    """The dimension, if it is given or a condition such as d = 2 fixes it."""
    if statement.d is not None:
        return statement.d
    for left, relation, right in statement.conditions:
        for name, value in ((left, right), (right, left)):
            if relation == "=" and name.kind == "name" and name.value == "d":
                number = value.value if value.kind == "number" else None
                if isinstance(number, Fraction):
                    if number.denominator != 1 or not 1 <= number <= 12:
                        raise ClaimError(
                            statement.text, value.at, "d must be a whole number from 1 to 12"
                        )
                    return int(number)
    return None


def _names_a_place(*nodes: Node) -> bool:
    return any(
        (node.kind == "index" and isinstance(node.parts[0].value, Fraction))
        or _names_a_place(*node.parts)
        for node in nodes
    )


def _equate(condition: Condition, space: Space, solved: dict[str, Form]) -> str:
    """Solve an equation for a letter or a vector. Returns the reason if it has no solution."""
    sides = [normal(x, space) for x in (condition.left, condition.right)]
    if any(isinstance(x, Vector) for x in sides):
        _equate_vectors(condition, sides, space)
        return ""
    for name, value in ((condition.left, sides[1]), (condition.right, sides[0])):
        said = str(name.value)  # s = 1/√d defines s
        free = name.kind == "name" and said != "d" and said not in solved
        if free and not _holds_name(value, said):
            _set_letter(said, value, space, solved)
            return ""
    difference = cleared(sides[0] - sides[1])
    if difference.constant is not None:
        return "" if difference.constant == 0 else "the conditions contradict each other"
    for a in sorted(difference.atoms(), key=str):
        if a[0] == "name" and (form := _explains(a[1], difference)) is not None:
            _set_letter(a[1], form, space, solved)
            return ""
    return ""


def _explains(name: str, difference: Form) -> Form | None:
    """The value of a letter, if the difference is c·letter + r with a number c and r without it."""
    alone = frozenset([(("name", name), Fraction(1))])
    c = difference.terms.get(alone)
    rest = Form({m: x for m, x in difference.terms.items() if m != alone})
    if c is None or _holds_name(rest, name):
        return None
    return rest.times(-1 / c)


def _holds_name(form: Form, name: str) -> bool:
    found = False

    def leaf(a: Any) -> Form | None:
        nonlocal found
        found |= a == ("name", name)
        if a[0] in ("sum", "ordered"):  # `rebuilt` does not look into these
            found |= f"(name {name})" in order(a)
        return None

    rebuilt(form, leaf, lambda _: "any")
    return found


def _set_letter(name: str, form: Form, space: Space, solved: dict[str, Form]) -> None:
    def leaf(a: Any) -> Form | None:
        return form if a == ("name", name) else None

    for other, value in list(space.letters.items()):
        space.letters[other] = rebuilt(value, leaf, space.known)
    space.letters[name] = form
    solved[name] = form


def _equate_vectors(condition: Condition, sides: list[Any], space: Space) -> None:
    """Solve q = 0, q = k or q = 2*k for the first vector."""
    for node, value in ((condition.left, sides[1]), (condition.right, sides[0])):
        name = str(node.value)
        if node.kind != "name" or name not in space.vectors:
            continue
        if isinstance(value, Form):
            if value:
                continue
            value = space.vectors[name].each(_nothing)
        forms = [*value.places, *([value.rest] if value.rest is not None else [])]
        if any(a[0] in ("at", "any") and a[1] == name for form in forms for a in form.atoms()):
            continue
        space.vectors[name] = value
        return


def _nothing(_: Form) -> Form:
    return Form({})


def _note_signs(statement: Statement, space: Space) -> None:
    """Note the signs that follow from conditions such as a > 0, 2 <= b or a > b."""
    space.signs, space.positive = {}, []
    nonzero = set[str]()
    for left, relation, right in statement.conditions:
        if relation == "=":
            continue
        try:
            sides = [normal(x, space) for x in (left, right)]
        except (NotNormalError, ZeroDivisionError):
            continue
        if any(isinstance(x, Vector) for x in sides):
            continue
        form = sides[0] - sides[1] if relation in (">", ">=", "!=") else sides[1] - sides[0]
        if relation != "!=":
            space.positive.append((form, relation in ("<", ">")))
        elif len(form.terms) == 1 and frozenset() not in form.terms:
            nonzero |= {a[1] for a in form.atoms() if a[0] == "name"}
    for name in statement.letters:
        sign = space.known(("form", atom("name", name)))
        if name in nonzero:
            sign = {"non-negative": "positive", "non-positive": "negative"}.get(sign, sign)
        if sign != "any":
            space.signs[name] = sign


def difference(statement: Statement, given: Setting) -> Form:
    """left − right, multiplied by its denominators."""
    return cleared(scalar(statement.left, given.space) - scalar(statement.right, given.space))


def derive(statement: Statement) -> Derivation | str:
    """A derivation that the two sides are equal, or the reason why there is none."""
    if statement.relation != "=":
        return "normal forms only prove equations"
    widths = _few_dimensions(statement)
    if widths is None:
        return _derive(statement, None)
    found = [_derive(statement, d) for d in widths]
    failed = next((x for x in found if isinstance(x, str)), None)
    if failed is not None or not found:
        return failed or "no dimension d meets the conditions"
    text = ", ".join(map(str, widths))
    reason = (
        f"both sides have the same normal form (d = {text}, which is all that the conditions allow)"
    )
    return Derivation(reason, assumptions(statement))


def _few_dimensions(statement: Statement) -> list[int] | None:
    """The possible dimensions, if a condition such as d < 3 leaves only a few."""
    if fixed_dimension(statement) is not None:
        return None
    top, conditions = None, []
    for condition in statement.conditions:
        left, relation, right = condition
        if right.kind == "name" and right.value == "d":
            left, relation, right = right, FLIPPED[relation], left
        if left.kind == "name" and left.value == "d" and isinstance(right.value, Fraction):
            conditions.append(condition)
            if relation in ("<", "<=") and right.value <= 12:
                top = int(right.value) if top is None else min(top, int(right.value))
    if top is None:
        return None
    least = largest_index(*statement.nodes)
    return [d for d in range(least, top + 1) if all(_holds(c, _only_d(d)) for c in conditions)]


def _only_d(d: int) -> Scope:
    return Scope("", {}, lambda _: Number(d), EXACTLY, Number)


def _derive(statement: Statement, d: int | None) -> Derivation | str:
    given = setting(statement, d)
    if given.impossible:
        return given.impossible
    try:
        form = difference(statement, given)
    except NotNormalError as error:
        return str(error)
    except ZeroDivisionError:
        return "the claim divides by 0"
    if form:
        return "the normal forms of the two sides differ"
    return Derivation(_said(statement, given), assumptions(statement))


def assumptions(statement: Statement) -> tuple[str, ...]:
    """The assumptions of every verdict on a statement."""
    found = [REAL]
    if statement.speaks_of_d and fixed_dimension(statement) is None:
        found.append(WHOLE)
    if any(_partial(node) for node in (statement.left, statement.right)):
        found.append(DEFINED)
    return tuple(found)


def _partial(node: Node) -> bool:
    """Whether an expression may be undefined somewhere."""
    if node.kind == "call" and node.value in _PARTIAL:
        return not (node.value == "sqrt" and node.parts[0].kind == "number")
    return has_gaps(node) or any(_partial(part) for part in node.parts)


def _said(statement: Statement, given: Setting) -> str:
    polynomial = not any(_calls(node) for node in (statement.left, statement.right))
    what = (
        "both sides expand to the same polynomial"
        if polynomial
        else "both sides have the same normal form"
    )
    return f"{what} ({span(statement, given)})"


def span(statement: Statement, given: Setting) -> str:
    """The dimensions for which a derivation holds."""
    if not statement.speaks_of_d:
        return "it has no vectors"
    if given.d is not None:
        return f"d = {given.d}"
    return "every d" if given.space.places <= 1 else f"every d ≥ {given.space.places}"


def _calls(node: Node) -> bool:
    own = node.kind == "call" and node.value not in ("dot", "norm2", "sum", "C", "factorial")
    return own or any(_calls(part) for part in node.parts)


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
            if not _holds(condition, scope[-1]):
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


def _holds(condition: Condition, scope: Scope) -> bool:
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
