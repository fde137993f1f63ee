"""Algebraic claims: are two expressions equal?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kerneltrick.proofs._evaluate import Scope, scalar_value, vector_names
from kerneltrick.proofs._monomials import counterexample, polynomial_terms
from kerneltrick.proofs._symbolic import Kernel, NotSymbolicError
from kerneltrick.proofs._sympy import Expr, real, sympy, vector, write, write_monomial
from kerneltrick.proofs._syntax import ClaimError, Node, Reader, Side, largest_index
from kerneltrick.proofs._verdict import Verdict

DIMENSIONS = (1, 2, 3)
SHOWN = 8
PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
POINTS = 16

Side_ = str | Callable[..., Any]


def check_identity(
    left: Side_, right: Side_ | None = None, d: int | Sequence[int] | None = None
) -> Verdict:
    """Whether two expressions in q, k and other letters are equal, in every dimension of `d`.

    Polynomials are compared coefficient by coefficient; other expressions are compared at points in
    exact arithmetic and then simplified. `left` may hold the whole claim, "a = b", also with
    conditions, "a = b where c = 1"; functions of (q, k) are run on symbols.

    >>> print(check_identity("(q·k + 1)**2 = (q·k)**2 + 2*(q·k) + 1"))
    TRUE: (q·k + 1)**2 = (q·k)**2 + 2*(q·k) + 1
      both sides expand to the same polynomial (d = 1 to 3)
    """
    dimensions = DIMENSIONS if d is None else (d,) if isinstance(d, int) else tuple(d)
    if callable(left) or callable(right):
        claim, pairs = _of_functions(left, right, dimensions)
    else:
        text = left if right is None else f"{left} = {right}"
        claim, pairs = text, _of_text(text, dimensions)
    basis = ""
    for width, a, b, vectors in pairs:
        verdict = _judge(claim, width, a, b, vectors)
        if verdict.status != "true":
            return verdict
        basis = verdict.reason
    low, high = dimensions[0], dimensions[-1]
    span = f"d = {low} to {high}" if high > low else f"d = {low}"
    if not any(pair[3] for pair in pairs):
        span = "no vectors in it"
    return Verdict("true", claim, f"{basis} ({span})", facts={"d": list(dimensions)})


Pair = tuple[int, Expr, Expr, dict[str, list[Expr]]]


def _of_text(text: str, dimensions: Sequence[int]) -> list[Pair]:
    reader = Reader(text)
    sides = reader.relation()
    conditions = reader.conditions()
    if len(sides) != 2 or sides[1].relation != "=":
        at = sides[1].node.at if len(sides) > 1 else len(text)
        raise ClaimError(text, at, "an identity has two sides: a = b")
    chosen = substitutions(text, conditions)
    nodes = [side.node for side in sides]
    least = largest_index(*nodes)
    dimensions = [x for x in dimensions if x >= least] or [least]
    letters = sorted(set[str]().union(*(vector_names(node) for node in nodes)), reverse=True)
    pairs = []
    for width in dimensions if letters else dimensions[:1]:
        vectors = {name: vector(name, width) for name in letters}

        def value(name: str, width: int = width) -> Expr:
            return chosen(name) if name != "d" else sympy.Integer(width)

        a, b = (scalar_value(node, Scope(text, vectors, value)) for node in nodes)
        pairs.append((width, a, b, vectors))
    return pairs


def substitutions(text: str, conditions: list[list[Side]]) -> Callable[[str], Expr]:
    """Letters as symbols, or as what `where` says: c = 1, s = 1/√d, c > 0."""
    given: dict[str, Node] = {}
    signs: dict[str, dict[str, bool]] = {}
    assumptions = {
        ">": {"positive": True},
        ">=": {"nonnegative": True},
        "<": {"negative": True},
        "<=": {"nonpositive": True},
        "!=": {"nonzero": True},
    }
    for sides in conditions:
        name = sides[0].node
        if len(sides) != 2 or name.kind != "name":
            raise ClaimError(text, name.at, "conditions are of the form c = 1 or c > 0")
        if sides[1].relation == "=":
            given[str(name.value)] = sides[1].node
        elif sides[1].relation in assumptions and sides[1].node.value == 0:
            signs[str(name.value)] = assumptions[sides[1].relation]
        else:
            raise ClaimError(text, sides[1].node.at, "conditions compare with 0 only: c > 0")

    def value(name: str, seen: tuple[str, ...] = ()) -> Expr:
        if name in given:
            if name in seen:
                raise ClaimError(text, given[name].at, f"{name} is explained by itself")
            scope = Scope(text, {}, lambda other: value(other, (*seen, name)))
            return scalar_value(given[name], scope)
        if name in signs:
            return sympy.Symbol(name, real=True, **signs[name])
        return real(name)

    return value


def _of_functions(
    left: Side_, right: Side_ | None, dimensions: Sequence[int]
) -> tuple[str, list[Pair]]:
    if right is None:
        raise ValueError("an identity of functions needs both sides")
    a, b = Kernel(left), Kernel(right)
    pairs = []
    for width in dimensions:
        vectors = {"q": vector("q", width), "k": vector("k", width)}
        try:
            both = (a.symbolic(*vectors.values()), b.symbolic(*vectors.values()))
        except NotSymbolicError as error:
            raise ValueError(f"an identity is decided on symbols, but {error}") from None
        pairs.append((width, *both, vectors))
    return f"{a.text} = {b.text}", pairs


def _judge(claim: str, d: int, left: Expr, right: Expr, vectors: dict[str, list[Expr]]) -> Verdict:
    letters = sorted(
        left.free_symbols | right.free_symbols, key=lambda s: (not str(s).startswith("q"), str(s))
    )
    difference = sympy.expand(left - right)
    if difference == 0:
        reason = "both sides expand to the same polynomial"
        if not difference.is_polynomial(*letters) or not left.is_polynomial(*letters):
            reason = "the difference expands to 0"
        return Verdict("true", claim, reason)
    if letters and difference.is_polynomial(*letters):
        return _refute(claim, d, left, right, vectors, letters)
    return _by_points(claim, d, left, right, vectors, letters)


def _refute(
    claim: str,
    d: int,
    left: Expr,
    right: Expr,
    vectors: dict[str, list[Expr]],
    letters: list[Expr],
) -> Verdict:
    a, b = polynomial_terms(left, letters), polynomial_terms(right, letters)
    wrong = [p for p in sorted({*a, *b}, reverse=True) if sympy.expand(a.get(p, 0) - b.get(p, 0))]
    names = [str(x) for x in letters]
    details = [
        f"{write_monomial(list(zip(names, p, strict=True)))}: left has {write(a.get(p, 0))}, "
        f"right has {write(b.get(p, 0))}"
        for p in wrong[:SHOWN]
    ]
    if len(wrong) > SHOWN:
        details.append(f"and {len(wrong) - SHOWN} more")
    point = counterexample(left - right, vectors)
    values = _at(point, vectors, letters)
    point |= {"left": _number(left.subs(values)), "right": _number(right.subs(values))}
    reason = f"{len(wrong)} coefficient{'s differ' if len(wrong) > 1 else ' differs'}"
    if vectors:
        reason += f" for d = {d}"
    return Verdict("false", claim, reason, tuple(details), point, "counterexample", {"d": d})


def _at(
    point: dict[str, Any], vectors: dict[str, list[Expr]], letters: list[Expr]
) -> dict[Expr, Any]:
    values = {x: v for name, xs in vectors.items() for x, v in zip(xs, point[name], strict=True)}
    return {**values, **{s: point[str(s)] for s in letters if str(s) in point}}


def _by_points(
    claim: str,
    d: int,
    left: Expr,
    right: Expr,
    vectors: dict[str, list[Expr]],
    letters: list[Expr],
) -> Verdict:
    """Expressions that are not polynomials: first points, in 40 digits, then simplification."""
    agreed = 0
    for shift in range(POINTS):
        values = {s: _pick(s, i, shift) for i, s in enumerate(letters)}
        a, b = (sympy.N(x.subs(values), 40) for x in (left, right))
        if not (a.is_real and b.is_real and a.is_finite and b.is_finite):
            continue
        if abs(a - b) > sympy.Float(10) ** -25 * (1 + abs(a) + abs(b)):
            grouped = {name: [values[x] for x in xs] for name, xs in vectors.items()}
            flat = {x for xs in vectors.values() for x in xs}
            alone = {str(s): v for s, v in values.items() if s not in flat}
            point = {**grouped, **alone, "left": float(a), "right": float(b)}
            reason = "the sides differ at a point" + (f" (d = {d})" if vectors else "")
            return Verdict("false", claim, reason, (), point, "counterexample", {"d": d})
        agreed += 1
    if not agreed:
        return Verdict("undecided", claim, "at no point tried are both sides real numbers")
    simple = sympy.simplify(left - right)
    if simple.has(sympy.Max, sympy.Min, sympy.Abs):  # by cases
        simple = sympy.simplify(sympy.piecewise_fold(simple.rewrite(sympy.Piecewise)))
    if simple == 0:
        return Verdict("true", claim, "the difference simplifies to 0")
    reason = (
        f"the sides agree to 25 digits at {agreed} points, but the difference does not simplify "
        f"to 0: {write(simple)[:120]}"
    )
    return Verdict("undecided", claim, reason)


def _pick(symbol: Expr, place: int, shift: int) -> int:
    """A small number that the symbol may be: positive ones first, then of all signs."""
    value = PRIMES[(place + shift) % len(PRIMES)] if shift % 2 else 1 + (place + shift) % 4
    flipped = shift >= 2 and (shift >> (place % 3)) & 1
    return -value if symbol.is_negative or (flipped and not symbol.is_nonnegative) else value


def _number(x: Expr) -> Any:
    x = sympy.expand(x)
    return int(x) if x.is_Integer else str(x) if x.is_Rational else float(x)
