"""Derive a statement: both sides have the same normal form under its conditions."""

from __future__ import annotations

from fractions import Fraction
from typing import Any, NamedTuple

from kerneltrick.proofs._evaluate import Scope
from kerneltrick.proofs._form import Form, NotNormalError, atom, cleared, order, power, rebuilt
from kerneltrick.proofs._normal import Space, Vector, normal, scalar
from kerneltrick.proofs._number import EXACTLY, Number
from kerneltrick.proofs._statement import FLIPPED, Condition, Statement, holds
from kerneltrick.proofs._syntax import ClaimError, Node, has_gaps, largest_index
from kerneltrick.proofs._verdict import DEFINED, REAL, WHOLE, Derivation

_PARTIAL = ("log", "sqrt", "cosine", "factorial")  # functions that are not defined everywhere


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
        form = _explains(a, difference) if a[0] in ("name", "sum") else None
        if form is not None and a[0] == "name":
            _set_letter(a[1], form, space, solved)
        elif form is not None:
            _set(a, form, space)
            space.sums[a] = form
        if form is not None:
            return ""
    return ""


def _explains(a: Any, difference: Form) -> Form | None:
    """The value of an atom, if the difference is c·atomᵉ + r with numbers c, 1/e and r without it.

    A norm is the root of a power sum: ‖q‖ = r implies Σqᵢ² = r²."""
    for m, c in difference.terms.items():
        e = dict(m).get(a)
        if e is None:
            continue
        rest = difference - Form({m: c})
        whole = (1 / e).denominator == 1 and e > 0 and len(m) == 1
        if not whole or order(a) in order(rest) or (a[0] == "name" and e != 1):
            return None
        return power(rest.times(-1 / c), 1 / e)
    return None


def _holds_name(form: Form, name: str) -> bool:
    return f"(name {name})" in order(form)


def _set_letter(name: str, form: Form, space: Space, solved: dict[str, Form]) -> None:
    _set(("name", name), form, space)
    space.letters[name] = form
    solved[name] = form


def _set(a: Any, form: Form, space: Space) -> None:
    """Put a form in place of an atom in all that is known already."""

    def leaf(x: Any) -> Form | None:
        return form if x == a else None

    stores: tuple[dict[Any, Form], ...] = (space.letters, space.sums)
    for values in stores:
        for key, value in values.items():
            values[key] = rebuilt(value, leaf, space.known)


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
    return [d for d in range(least, top + 1) if all(holds(c, _only_d(d)) for c in conditions)]


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
    if any(may_be_undefined(node) for node in (statement.left, statement.right)):
        found.append(DEFINED)
    return tuple(found)


def may_be_undefined(node: Node) -> bool:
    """Whether an expression may be undefined somewhere."""
    if node.kind == "call" and node.value in _PARTIAL:
        return not (node.value == "sqrt" and node.parts[0].kind == "number")
    return has_gaps(node) or any(may_be_undefined(part) for part in node.parts)


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
