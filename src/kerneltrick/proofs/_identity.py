"""Decide whether two expressions are equal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kerneltrick.proofs._coefficients import shown, wrong_coefficients
from kerneltrick.proofs._derive import assumptions, derive
from kerneltrick.proofs._search import NOTHING, FoundValues, search, speaks_of_something
from kerneltrick.proofs._statement import Statement, breaks, read_conditions
from kerneltrick.proofs._symbolic import FLOATS_READ, Kernel, NotSymbolicError, as_node
from kerneltrick.proofs._sympy import vector
from kerneltrick.proofs._syntax import ClaimError, Reader
from kerneltrick.proofs._verdict import Counterexample, Derivation, Verdict

DIMENSIONS = (1, 2, 3)  # for functions: they are run on symbols of these widths
Side_ = str | Callable[..., Any]


def check_identity(
    left: Side_, right: Side_ | None = None, d: int | Sequence[int] | None = None
) -> Verdict:
    """Decide whether two expressions in q, k and other letters are equal.

    The claim is proven in every dimension at once, or in `d` if it is given. Both sides are brought
    into a normal form. If the forms differ, points are tried; a point at which the sides differ in
    exact arithmetic refutes the claim. `left` may contain the whole claim, "a = b", also with
    conditions, "a = b where c = 1, d = 2". Functions of (q, k) are run on symbols, for d = 1, 2 and
    3 by default.

    >>> print(check_identity("(q·k + 1)**2 = (q·k)**2 + 2*(q·k) + 1"))
    TRUE: (q·k + 1)**2 = (q·k)**2 + 2*(q·k) + 1
      both sides expand to the same polynomial (every d)
      assumed: all numbers are real; d is a whole number ≥ 1
    """
    if callable(left) or callable(right):
        return _of_functions(left, right, DIMENSIONS if d is None else _widths(d))
    text = left if right is None else f"{left} = {right}"
    statement = _read(text)
    verdicts = [
        judge(text, statement if width is None else statement._replace(d=width))
        for width in ([None] if d is None else _widths(d))
    ]
    return next((x for x in verdicts if x.status != "true"), verdicts[-1])


def _widths(d: int | Sequence[int]) -> list[int]:
    found = [d] if isinstance(d, int) else list(d)
    if not found or any(isinstance(x, bool) or not 1 <= x <= 12 for x in found):
        raise ValueError(f"d must be from 1 to 12, not {d!r}")
    return found


def _read(text: str) -> Statement:
    reader = Reader(text)
    sides = reader.relation()
    said = reader.conditions()
    if len(sides) != 2 or sides[1].relation != "=":
        at = sides[1].node.at if len(sides) > 1 else len(text)
        raise ClaimError(text, at, "an identity has the form a = b")
    conditions = read_conditions(text, said)
    return Statement(text, sides[0].node, "=", sides[1].node, conditions)


def judge(claim: str, statement: Statement) -> Verdict:
    """The verdict on an equation."""
    found = decide_equation(statement)
    if isinstance(found, FoundValues):
        return refuted(claim, statement, found)
    if isinstance(found, Derivation):
        return Verdict.true(claim, found)
    return Verdict.undecided(claim, found)


def decide_equation(statement: Statement) -> Derivation | FoundValues | str:
    """A derivation of an equation, values that break it, or the reason for neither."""
    found = search(statement, 1)  # the first point refuses what cannot be read
    if found is not None:
        return found
    derived = derive(statement)
    if isinstance(derived, Derivation):
        return derived if speaks_of_something(statement) else NOTHING
    return search(statement) or (
        f"no values were found for which the sides differ, and no proof: {derived}"
    )


def refuted(claim: str, statement: Statement, found: FoundValues) -> Verdict:
    """The verdict from values that break an equation, with the coefficients that differ."""
    lines = wrong_coefficients(statement, found.d) if found.d <= 4 else None
    reason = "the sides differ at a point" + (f" (d = {found.d})" if statement.vectors else "")
    if lines:
        reason = f"{len(lines)} coefficient{'s differ' if len(lines) > 1 else ' differs'}"
        if statement.vectors:
            reason += f" for d = {found.d}"
    values = {**found.shown(statement), **found.sides("left", "right")}
    example = Counterexample(
        reason,
        values,
        lambda: breaks(statement, found.d, found.point) is not None,
        assumptions(statement),
    )
    facts = {"d": found.d} if statement.speaks_of_d else {}
    return Verdict.false(claim, example, shown(lines or []), facts)


def _of_functions(left: Side_, right: Side_ | None, widths: Sequence[int]) -> Verdict:
    if right is None:
        raise ValueError("an identity between functions needs both left and right")
    a, b = Kernel(left), Kernel(right)
    span = ", ".join(map(str, widths))
    claim = f"{a.text} = {b.text} for d = {span}"
    for d in widths:
        vectors = {"q": vector("q", d), "k": vector("k", d)}
        try:
            sides = [as_node(x.symbolic(*vectors.values())) for x in (a, b)]
        except NotSymbolicError as error:
            raise ValueError(
                f"an identity needs functions that run on symbols, but {error}"
            ) from None
        statement = Statement(claim, sides[0], "=", sides[1], (), d)
        verdict = judge(claim, statement)
        if verdict.status != "true":
            return verdict
    taken = (*assumptions(statement), FLOATS_READ)
    return Verdict.true(
        claim, Derivation(f"both sides have the same normal form (d = {span})", taken)
    )
