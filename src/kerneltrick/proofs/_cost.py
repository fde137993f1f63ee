"""Is a cost as claimed? Exact counts against O(…) or against exact expressions."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

from kerneltrick import costs
from kerneltrick.costs import Cost, Direction, Polynomial, Relation
from kerneltrick.proofs._evaluate import Scope, scalar_value
from kerneltrick.proofs._syntax import ClaimError, Node, Reader
from kerneltrick.proofs._verdict import Verdict

QUANTITIES = {
    "time": "multiply_adds",
    "multiply-adds": "multiply_adds",
    "elementwise": "elementwise",
    "traffic": "moved",
    "memory": "memory",
}
_ALIASES = {"N": "n", "T": "n", "L": "n"}


def check_cost(claim: str, algorithm: str | Cost, quantity: str = "time") -> Verdict:
    """Whether an algorithm costs what is claimed: "O(n*D**2*M)", or an exact count.

    O(…) is read as the order of the cost: an upper bound that is larger than needed is "too loose",
    and false. All sizes may grow at their own pace; conditions tie them: "O(n*D**3) where M = D",
    "O(n**2*D) where M << D". `quantity` is time, elementwise, traffic or memory.

    >>> print(check_cost("O(n**2*D)", "softmax"))
    FALSE: softmax time: O(n**2*D)
      wrong: the term n²·M is missing; it is O(n²·D + n²·M)
      - right when M = D
      counterexample: M = 1000, others = 1, count = 1001, claim = 1
    """
    if quantity not in QUANTITIES:
        raise ValueError(f"quantity must be one of {', '.join(QUANTITIES)}, not {quantity!r}")
    cost = costs.get(algorithm) if isinstance(algorithm, str) else algorithm
    reader = Reader(claim)
    node = reader.expression()
    relations, values = _conditions(claim, reader)
    name = algorithm if isinstance(algorithm, str) else cost.name
    label = f"{name} {quantity}: {claim}"
    is_order = node.kind == "call" and node.value in ("O", "Theta", "Θ")
    body = node.parts[0] if is_order else node
    _check_sizes(claim, body, cost)
    claimed = _polynomial(claim, body)
    cost, claimed = _fitted(cost, claimed, values)
    field = QUANTITIES[quantity]
    extra = tuple(("log " + s, s) for s in ("n", "D", "d") if "log " + s in claimed.symbols)
    relations = (*relations, *extra, *cost.relations)
    if not is_order:
        return _exact(label, getattr(cost, field), claimed)
    return _order(label, cost.growth(field), claimed, relations, cost)


def _conditions(text: str, reader: Reader) -> tuple[tuple[Relation, ...], dict[str, Polynomial]]:
    relations, values = list[Relation](), dict[str, Polynomial]()
    for sides in reader.conditions():
        left, right = sides[0].node, sides[-1]
        if len(sides) != 2 or left.kind != "name":
            raise ClaimError(text, left.at, "conditions are of the form M = D or M <= D")
        name = _ALIASES.get(str(left.value), str(left.value))
        if right.relation == "=":
            values[name] = _polynomial(text, right.node)
        elif right.relation in ("<", "<=", "<<") and right.node.kind == "name":
            relations.append((name, str(right.node.value)))
        elif right.relation in (">", ">=") and right.node.kind == "name":
            relations.append((str(right.node.value), name))
        else:
            raise ClaimError(text, left.at, "conditions are of the form M = D or M <= D")
    return tuple(relations), values


def _polynomial(text: str, node: Node) -> Polynomial:
    """The claimed expression, a sum of products of sizes."""

    def size(name: str) -> Polynomial:
        return costs.symbol(_ALIASES.get(name, name))

    def logarithm(x: Polynomial) -> Polynomial:
        if len(x.symbols) != 1 or x != costs.symbol(x.symbols[0]):
            raise ClaimError(text, node.at, "log of a single size only, such as log(n)")
        return costs.symbol(f"log {x.symbols[0]}")

    functions: dict[str, Callable[..., Any]] = {"log": logarithm, "C": _binomial}
    scope = Scope(text, {}, size, functions, _constant, lambda x, p: x ** int(p))
    _check_powers(text, node)
    try:
        found = scalar_value(node, scope)
    except ClaimError:
        raise
    except (TypeError, ValueError) as error:
        raise ClaimError(text, node.at, str(error)) from None
    assert isinstance(found, Polynomial)
    return found


def _constant(x: Fraction) -> Polynomial:
    return Polynomial({(): x})


def _check_powers(text: str, node: Node) -> None:
    power = node.parts[1].value if node.kind == "op" and node.value == "**" else Fraction(0)
    if isinstance(power, Fraction) and power.denominator != 1:
        raise ClaimError(text, node.at, "sizes have whole exponents in a cost")
    for part in node.parts:
        _check_powers(text, part)


def _binomial(top: Polynomial, bottom: Polynomial) -> Polynomial:
    if bottom.symbols:
        raise ValueError("the lower number of C(…, …) must be a number")
    return costs.binomial(top, int(bottom.at()))


def _fitted(
    cost: Cost, claimed: Polynomial, values: dict[str, Polynomial]
) -> tuple[Cost, Polynomial]:
    """Cost and claim in the same letters: with k = d/h and what `where` says, D = M = d where the
    claim writes a small d only, and tile sizes constant unless it names them."""
    kept = tuple(s for s in cost.constants if s not in claimed.symbols)
    every = _all_sizes(cost)
    if "d" in claimed.symbols and "d" not in every:
        values = {s: costs.symbol("d") for s in ("D", "M") if s not in claimed.symbols} | values
    if "D" in claimed.symbols and "D" not in every and "d" in every:
        values = {"D": costs.symbol("d")} | values
    values = {s: x for s, x in cost.identities.items() if s not in values} | values
    cost = dataclasses.replace(cost.subs(**values), constants=kept)
    return cost, claimed.subs(**values)


def _all_sizes(cost: Cost) -> set[str]:
    counts = (cost.multiply_adds, cost.elementwise, cost.moved, cost.memory)
    found = {s for count in counts for s in count.symbols}
    return found.union(cost.identities, *(x.symbols for x in cost.identities.values()))


def _check_sizes(text: str, node: Node, cost: Cost) -> None:
    """Every letter of the claim is a size of the algorithm; d stands for D and M, and N for n."""
    known = _all_sizes(cost) | {"n"}  # a claim may say that the length matters where it does not
    if node.kind == "name":
        name = _ALIASES.get(str(node.value), str(node.value))
        same = {"d": "D", "D": "d"}.get(name, name)
        if name not in known and same not in known:
            sizes = ", ".join(sorted(known - {"w"}))
            raise ClaimError(text, node.at, f"{cost.name} has no size {name}; it has {sizes}")
    for part in node.parts:
        _check_sizes(text, part, cost)


def _exact(label: str, count: Polynomial, claimed: Polynomial) -> Verdict:
    if count == claimed:
        return Verdict("true", label, f"counted: {count}")
    sizes = _sizes(count, claimed)
    values = {s: 2 + i for i, s in enumerate(sizes)}
    if count.at(**values) == claimed.at(**values):
        values = {s: 3 + 2 * i for i, s in enumerate(sizes)}
    point = {**values, "count": count.at(**values), "claim": claimed.at(**values)}
    difference = count - claimed
    details = [_equal_when(lambda a, b: a == b, count, claimed)]
    reason = f"the count is {count}; claim and count differ by {difference}"
    return Verdict("false", label, reason, tuple(filter(None, details)), point, "counterexample")


def _order(
    label: str,
    count: Polynomial,
    claimed: Polynomial,
    relations: Sequence[Relation],
    cost: Cost,
) -> Verdict:
    true_order = f"O({costs.leading(count, relations)})"
    if any(c < 0 for c in claimed.terms.values()):
        return Verdict("undecided", label, "an order is a sum of positive terms")
    missing = costs.missing_terms(count, claimed, relations)
    loose = costs.missing_terms(claimed, count, relations)

    def right(a: Polynomial, b: Polynomial) -> bool:
        there, back = (costs.missing_terms(*x, relations) for x in ((a, b), (b, a)))
        return not there and not back

    facts = {"order": true_order, "count": str(count)}
    details = _equal_when(right, count, claimed)
    notes = tuple(filter(None, [details]))
    if missing:
        terms = costs.leading(sum((t for t, _ in missing), Polynomial()), relations)
        plural = "s" if len(terms.terms) > 1 else ""
        verb = "are" if plural else "is"
        reason = f"wrong: the term{plural} {terms} {verb} missing; it is {true_order}"
        shown = [d for t, d in missing if t in list(terms.monomials())]
        point = _far(count, claimed, shown[0], "count", "claim")
        if loose:
            extra = sum((t for t, _ in loose), Polynomial())
            reason += f" (and {costs.leading(extra, relations)} is more than it takes)"
        return Verdict("false", label, reason, notes, point, "counterexample", facts)
    if loose:
        terms = costs.leading(sum((t for t, _ in loose), Polynomial()), relations)
        reason = f"too loose: an upper bound, but {terms} is more than it takes; it is {true_order}"
        point = _far(claimed, count, loose[0][1], "claim", "count")
        return Verdict("false", label, reason, notes, point, "counterexample", facts)
    return Verdict("true", label, f"the count is {count}, which is {true_order}", facts=facts)


def _equal_when(right: Any, count: Polynomial, claimed: Polynomial) -> str:
    """Two sizes whose equality would make the claim right."""
    widths = [s for s in _sizes(count, claimed) if s in ("D", "M", "F", "d", "k", "v", "m")]
    for a, b in itertools.permutations(reversed(widths), 2):
        if right(count.subs(**{a: costs.symbol(b)}), claimed.subs(**{a: costs.symbol(b)})):
            return f"right when {a} = {b}"
    return ""


def _sizes(*polynomials: Polynomial) -> list[str]:
    return list(sum(polynomials, Polynomial({(): 1})).symbols) or []


def _far(
    large: Polynomial, small: Polynomial, direction: Direction, large_name: str, small_name: str
) -> dict[str, Any]:
    """Sizes far out in a direction, where one outgrows the other."""
    sizes = dict.fromkeys({*large.symbols, *small.symbols}, 1)
    top = max(direction.values(), default=1) or 1
    step = 1000 if top == 1 else 100 if top == 2 else 10
    grown = {s: step**e for s, e in direction.items() if s in sizes and e > 0}
    sizes |= grown
    both = {large_name: large.at(**sizes), small_name: small.at(**sizes)}
    order = ("count", "claim")
    numbers = {name: _number(both[name]) for name in order}
    others = {"others": 1} if len(grown) < len(sizes) else {}
    return {**grown, **others, **numbers}


def _number(x: Any) -> int | float:
    return x if isinstance(x, int) else float(x)
