"""Decide claims about costs by comparing them with exact counts."""

from __future__ import annotations

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple

from kerneltrick import costs
from kerneltrick.costs import Cost, Direction, Polynomial, Relation
from kerneltrick.proofs._evaluate import Scope, scalar_value
from kerneltrick.proofs._syntax import ClaimError, Node, Reader
from kerneltrick.proofs._verdict import Counterexample, Derivation, Verdict

QUANTITIES = {
    "time": "multiply_adds",
    "multiply-adds": "multiply_adds",
    "elementwise": "elementwise",
    "traffic": "moved",
    "memory": "memory",
}
SIZES = "sizes are whole numbers ≥ 1"
_ALIASES = {"N": "n", "T": "n", "L": "n"}


def check_cost(claim: str, algorithm: str | Cost, quantity: str = "time") -> Verdict:
    """Decide a claim about the cost of an algorithm: "O(n*D**2)", "Theta(n)", or an exact count.

    O(…) is an upper bound; the verdict says if it is loose. Theta(…) is the order itself, so a
    loose one is false. The length n and all sizes that the claim names may grow, each at its own
    pace. Sizes that the claim does not name are fixed, and the verdict says which: "O(n)" is true
    of linear attention, with m and M fixed. Conditions tie sizes to each other: "O(n*D**3) where
    M = D", "O(n**2*D) where M << D". `quantity` is "time", "elementwise", "traffic" or "memory".

    >>> print(check_cost("O(n**2)", "softmax"))
    TRUE: softmax time: O(n**2)
      the count is n²·D + n²·M, which is O(n²) with D and M fixed
      - if D and M grow as well, it is O(n²·D + n²·M)
      assumed: D and M are fixed; sizes are whole numbers ≥ 1
    >>> print(check_cost("O(n*D)", "softmax"))
    FALSE: softmax time: O(n*D)
      wrong: the term n²·D is missing; it is O(n²·D) with M fixed
      - if M grows as well, it is O(n²·D + n²·M)
      counterexample: n = 1000, others = 1, count = 2000000, claim = 1000
      assumed: M is fixed; sizes are whole numbers ≥ 1
    """
    if quantity not in QUANTITIES:
        raise ValueError(f"quantity must be one of {', '.join(QUANTITIES)}, not {quantity!r}")
    cost = costs.get(algorithm) if isinstance(algorithm, str) else algorithm
    reader = Reader(claim)
    node = reader.expression()
    related, values = _conditions(claim, reader, cost)
    name = algorithm if isinstance(algorithm, str) else cost.name
    label = f"{name} {quantity}: {claim}"
    is_order = node.kind == "call" and node.value in ("O", "Theta", "Θ")
    body = node.parts[0] if is_order else node
    if is_order and len(node.parts) != 1:
        raise ClaimError(claim, node.at, "an order contains one expression: O(n*D)")
    _check_sizes(claim, body, cost)
    claimed = _polynomial(claim, body)
    fitted, claimed, taken, values = _fitted(claim, cost, claimed, values)
    limits = [(_of(a, values), _of(b, values)) for a, b in (*related, *cost.relations)]
    field = QUANTITIES[quantity]
    if not getattr(fitted, field):
        return Verdict.undecided(label, f"the {quantity} of {cost.name} is not counted")
    logs = tuple(s for s in claimed.symbols if s.startswith("log "))
    if not is_order:
        if logs:
            raise ClaimError(claim, body.at, "an exact count cannot contain a logarithm")
        return _exact(label, getattr(fitted, field), claimed, limits, taken, values)
    relations, bounded = _growing(claim, limits)
    constants = (*fitted.constants, *bounded)
    count = getattr(fitted, field)
    taken = (*taken, *(f"{s} is a constant" for s in constants if s in count.symbols))
    relations = (*relations, *((s, s.removeprefix("log ")) for s in logs))
    growth, claimed = (x.subs(**dict.fromkeys(bounded, 1)) for x in (fitted.growth(field), claimed))
    said = {s.removeprefix("log ") for s in claimed.symbols} | {s for pair in related for s in pair}
    fixed = _unnamed(growth, said, relations)
    return _order(label, _CostGrowth(growth, claimed, relations, fixed), node.value == "O", taken)


def _unnamed(growth: Polynomial, named: set[str], relations: Sequence[Relation]) -> tuple[str, ...]:
    """The sizes that a claim does not name. The length n always grows, and so does a size that is
    at least as large as one that grows."""
    growing = {*named, "n"}
    for _ in relations:
        growing |= {large for small, large in relations if small in growing}
    fixed = tuple(s for s in growth.symbols if s not in growing)

    def order(held: Sequence[str]) -> Polynomial:
        return costs.leading(_held(growth, held), relations)

    for s in fixed:  # those that do not matter need not be fixed
        fewer = tuple(x for x in fixed if x != s)
        if order(fewer) == order(fixed):
            fixed = fewer
    return fixed


def _held(count: Polynomial, fixed: Sequence[str]) -> Polynomial:
    """A count as a function of the sizes that are not fixed."""
    ones = count.subs(**dict.fromkeys(fixed, 1))
    primes = dict(zip(fixed, (1009, 1013, 1019, 1021, 1031, 1033, 1039, 1049), strict=False))
    generic = count.subs(**primes).subs(**dict.fromkeys(fixed, 1051))
    return ones if ones.terms.keys() == generic.terms.keys() else generic  # m − 1 is not 0


def _conditions(
    text: str, reader: Reader, cost: Cost
) -> tuple[tuple[Relation, ...], dict[str, Polynomial]]:
    """The conditions between sizes. Each size belongs to the algorithm and is defined once."""
    relations, values = list[Relation](), dict[str, Polynomial]()
    problem = "a condition has the form M = D or M <= D"
    for sides in reader.conditions():
        for before, right in itertools.pairwise(sides):
            left = before.node
            if left.kind != "name":
                raise ClaimError(text, left.at, problem)
            for part in (left, right.node):
                _check_sizes(text, part, cost)
            name = _ALIASES.get(str(left.value), str(left.value))
            if right.relation == "=":
                if name in values:
                    raise ClaimError(text, left.at, f"{name} is defined twice")
                values[name] = _polynomial(text, right.node)
                if not values[name].symbols and not _is_size(values[name].at()):
                    raise ClaimError(text, right.node.at, SIZES)
                continue
            if right.node.kind != "name":
                raise ClaimError(text, right.node.at, problem)
            other = _ALIASES.get(str(right.node.value), str(right.node.value))
            if right.relation in ("<", "<=", "<<"):
                relations.append((name, other))
            elif right.relation in (">", ">="):
                relations.append((other, name))
            else:
                raise ClaimError(text, left.at, problem)
    return tuple(relations), _resolved(text, values)


def _resolved(text: str, values: dict[str, Polynomial]) -> dict[str, Polynomial]:
    """Substitute definitions into each other: M = D, D = 3."""
    for _ in range(len(values)):
        values = {name: x.subs(**values) for name, x in values.items()}
    for name, x in values.items():
        if set(x.symbols) & set(values):
            raise ClaimError(text, text.rfind(name), f"{name} is defined by itself")
    return values


def _polynomial(text: str, node: Node) -> Polynomial:
    """The claimed expression as a sum of products of sizes."""

    def size(name: str) -> Polynomial:
        return costs.symbol(_ALIASES.get(name, name))

    def logarithm(x: Polynomial) -> Polynomial:
        if len(x.symbols) != 1 or x != costs.symbol(x.symbols[0]):
            raise ClaimError(text, node.at, "log takes a single size, as in log(n)")
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
        raise ClaimError(text, node.at, "exponents of sizes must be whole numbers")
    for part in node.parts:
        _check_powers(text, part)


def _binomial(top: Polynomial, bottom: Polynomial) -> Polynomial:
    if bottom.symbols:
        raise ValueError("the second argument of C(…, …) must be a number")
    return costs.binomial(top, int(bottom.at()))


def _is_size(x: Any) -> bool:
    return bool(x == int(x) and x >= 1)


Limit = tuple[Polynomial, Polynomial]  # the smaller size and the larger one


def _of(name: str, values: Mapping[str, Polynomial]) -> Polynomial:
    """A size in terms of the remaining letters."""
    return values[name] if name in values else costs.symbol(name)


def _growing(text: str, limits: Sequence[Limit]) -> tuple[tuple[Relation, ...], tuple[str, ...]]:
    """Split limits into relations between growing sizes and sizes bounded by a number."""
    relations, bounded = list[Relation](), list[str]()
    for small, large in limits:
        if not small.symbols or _at_most(small, large):
            continue
        names = [_only_symbol(small), _only_symbol(large)]
        if names[0] is None or (large.symbols and names[1] is None):
            problem = f"orders need conditions between two sizes, not {small} <= {large}"
            raise ClaimError(text, 0, problem)
        if names[1] is None:
            bounded.append(names[0])
        elif names[0] != names[1]:
            relations.append((names[0], names[1]))
    for _ in relations:
        bounded += [a for a, b in relations if b in bounded and a not in bounded]
    return tuple(relations), tuple(dict.fromkeys(bounded))


def _only_symbol(x: Polynomial) -> str | None:
    """The size of which this is a multiple, if there is one."""
    if len(x.symbols) != 1 or len(x.terms) != 1:
        return None
    ratio = x / costs.symbol(x.symbols[0])
    return None if ratio.symbols else x.symbols[0]


def _at_most(small: Polynomial, large: Polynomial) -> bool:
    """Whether one term is at most another for all sizes, such as d/h and d."""
    if len(small.terms) != 1 or len(large.terms) != 1:
        return small == large
    ((key, c),) = (large / small).terms.items()
    return c >= 1 and all(e >= 0 for _, e in key)


def _fitted(
    text: str, cost: Cost, claimed: Polynomial, said: dict[str, Polynomial]
) -> tuple[Cost, Polynomial, tuple[str, ...], dict[str, Polynomial]]:
    """Write cost and claim in the same letters.

    Identities such as k = d/h and the conditions are substituted. D and M become d if the claim
    writes a small d. Tile sizes are constants unless the claim names them. Returns the cost, the
    claim, what was assumed without being said, and the values of the letters that were replaced."""
    kept = tuple(s for s in cost.constants if s not in claimed.symbols)
    every = _all_sizes(cost)
    silent: dict[str, Polynomial] = {}
    if "d" in claimed.symbols and "d" not in every:
        widths = [s for s in ("D", "M") if s in every and s not in claimed.symbols]
        silent = {s: costs.symbol("d") for s in widths if s not in said}
    if "D" in claimed.symbols and "D" not in every and "d" in every and "D" not in said:
        silent = {"D": costs.symbol("d")}
    taken = [f"{s} = {x}" for s, x in silent.items()]
    used = {*claimed.symbols, *_all_counts(cost)}
    values = {**silent, **said}
    known: dict[str, Polynomial] = {}
    for s, x in cost.identities.items():
        try:
            meant = x.subs(**values)
        except (TypeError, ValueError, ArithmeticError) as error:
            raise ClaimError(text, 0, f"{s} = {x} is then not a sum of products: {error}") from None
        if s not in values and meant != costs.symbol(s):  # k = d/h says nothing if d = h·k
            known[s] = meant
            taken += [f"{s} = {meant}"] if s in used else []
        elif s in values and s in used and values[s].subs(**known) != meant:
            taken.append(f"{s} = {values[s]}, which need not be {x}")
    values = _resolved(text, known | values)
    fitted = dataclasses.replace(cost.subs(**values), constants=kept)
    return fitted, claimed.subs(**values), tuple(taken), values


def _all_counts(cost: Cost) -> set[str]:
    counts = (cost.multiply_adds, cost.elementwise, cost.moved, cost.memory)
    return {s for count in counts for s in count.symbols}


def _all_sizes(cost: Cost) -> set[str]:
    found = _all_counts(cost)
    return found.union(cost.identities, *(x.symbols for x in cost.identities.values()))


def _check_sizes(text: str, node: Node, cost: Cost) -> None:
    """Check that every letter is a size of the algorithm. d may stand for D and M, and N for n."""
    known = _all_sizes(cost) | {"n"}  # a claim may use n even if the count does not
    if node.kind == "name":
        name = _ALIASES.get(str(node.value), str(node.value))
        same = {"d": "D", "D": "d"}.get(name, name)
        if name not in known and same not in known:
            sizes = ", ".join(sorted(known - {"w"}))
            raise ClaimError(text, node.at, f"{cost.name} has no size {name}; it has {sizes}")
    for part in node.parts:
        _check_sizes(text, part, cost)


def _exact(
    label: str,
    count: Polynomial,
    claimed: Polynomial,
    limits: Sequence[Limit],
    taken: tuple[str, ...],
    explained: Mapping[str, Polynomial],
) -> Verdict:
    taken = (*taken, SIZES)
    if count == claimed:
        return Verdict.true(label, Derivation(f"counted: {count}", taken))
    sizes = _sizes(count, claimed)

    def differ(values: Mapping[str, int]) -> bool:
        """Whether count and claim differ at sizes that meet all conditions. Unused sizes are 1."""

        def at(x: Polynomial) -> Any:
            return x.at(**{s: values.get(s, 1) for s in x.symbols})

        return (
            at(count) != at(claimed)
            and all(at(small) <= at(large) for small, large in limits)
            and all(_is_size(at(x)) for x in explained.values())
        )

    named = [(_only_symbol(a), _only_symbol(b)) for a, b in limits]
    relations = [(a, b) for a, b in named if a is not None and b is not None]
    for values in _small_sizes(sizes, relations):
        if differ(values):
            break
    else:
        return Verdict.undecided(
            label, f"the count is {count}, but no sizes were found for which the claim differs"
        )
    details = _equal_when(lambda a, b: a == b, count, claimed)
    example = Counterexample(
        f"the count is {count}; the claim differs from it by {count - claimed}",
        {**values, "count": _number(count.at(**values)), "claim": _number(claimed.at(**values))},
        lambda: differ(values),
        taken,
    )
    return Verdict.false(label, example, tuple(filter(None, [details])))


def _small_sizes(sizes: list[str], relations: Sequence[Relation]) -> Iterator[dict[str, int]]:
    """Sizes that meet the relations: first distinct ones, then random ones."""
    for step in range(1, 40):
        values = {s: 1 + step * (i + 1) for i, s in enumerate(sizes)}
        for _ in relations:  # give the larger size the larger value
            for small, large in relations:
                if values.get(small, 0) > values.get(large, 10**9):
                    values[small], values[large] = values[large], values[small]
        if _ordered(values, relations):
            yield values
    chooser = random.Random(0)
    for _ in range(400):  # sizes that divide each other, as h divides d
        yield {s: chooser.choice((1, 2, 3, 4, 6, 12, 24, 60)) for s in sizes}


def _ordered(values: Mapping[str, int], relations: Sequence[Relation]) -> bool:
    return all(values.get(a, 0) <= values.get(b, 10**9) for a, b in relations)


class _CostGrowth(NamedTuple):
    """A count and a claim about its order, with the sizes that are fixed."""

    total: Polynomial
    claimed: Polynomial
    relations: Sequence[Relation]
    fixed: tuple[str, ...]

    @property
    def growing(self) -> Polynomial:
        """The count as a function of the sizes that grow."""
        return _held(self.total, self.fixed)

    @property
    def order(self) -> str:
        return f"O({costs.leading(self.growing, self.relations)})"

    @property
    def holding(self) -> str:
        return f" with {_listed(self.fixed)} fixed" if self.fixed else ""

    @property
    def note(self) -> str:
        """The order if nothing is fixed, where that differs."""
        if not self.fixed:
            return ""
        verb = "grows" if len(self.fixed) == 1 else "grow"
        whole = costs.leading(self.total, self.relations)
        return f"if {_listed(self.fixed)} {verb} as well, it is O({whole})"


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def _order(label: str, given: _CostGrowth, is_bound: bool, taken: tuple[str, ...]) -> Verdict:
    """The verdict on an upper bound O(…), or else on an order Theta(…)."""
    count, claimed, relations = given.growing, given.claimed, given.relations
    if given.fixed:
        verb = "is" if len(given.fixed) == 1 else "are"
        taken = (*taken, f"{_listed(given.fixed)} {verb} fixed")
    taken = (*taken, SIZES)
    if any(c < 0 for c in claimed.terms.values()):
        return Verdict.undecided(label, "an order is a sum of positive terms")
    if not claimed:
        return Verdict.undecided(label, "O(0) is not the order of a cost")
    missing = costs.missing_terms(count, claimed, relations)
    loose = costs.missing_terms(claimed, count, relations)

    def right(a: Polynomial, b: Polynomial) -> bool:
        there = costs.missing_terms(a, b, relations)
        return not there and (is_bound or not costs.missing_terms(b, a, relations))

    facts = {"order": given.order, "count": str(given.total)}
    if given.fixed:
        facts["fixed"] = ", ".join(given.fixed)
    if not missing and (is_bound or not loose):
        reason = f"the count is {given.total}, which is {given.order}{given.holding}"
        if loose:
            reason = f"loose; {given.order} is tight{given.holding}: the count is {given.total}"
        details = tuple(filter(None, [given.note]))
        return Verdict.true(label, Derivation(reason, taken), details, facts)
    notes = tuple(filter(None, [given.note, _equal_when(right, given.total, claimed)]))
    if missing:
        terms = costs.leading(sum((t for t, _ in missing), Polynomial()), relations)
        plural = "s" if len(terms.terms) > 1 else ""
        verb = "are" if plural else "is"
        reason = f"wrong: the term{plural} {terms} {verb} missing; it is "
        reason += given.order + given.holding
        term, direction = next(x for x in missing if x[0] in list(terms.monomials()))
        point = _far(count, claimed, direction, "count", "claim")
        if loose:
            extra = sum((t for t, _ in loose), Polynomial())
            reason += f" (and {costs.leading(extra, relations)} is more than it takes)"
        example = _outgrown(reason, point, term, claimed, direction, relations, taken)
        return Verdict.false(label, example, notes, facts)
    terms = costs.leading(sum((t for t, _ in loose), Polynomial()), relations)
    reason = f"too loose: {terms} is more than it takes; it is {given.order}{given.holding}"
    term, direction = loose[0]
    point = _far(claimed, count, direction, "claim", "count")
    example = _outgrown(reason, point, term, count, direction, relations, taken)
    return Verdict.false(label, example, notes, facts)


def _outgrown(
    reason: str,
    point: dict[str, Any],
    term: Polynomial,
    bound: Polynomial,
    direction: Direction,
    relations: Sequence[Relation],
    taken: tuple[str, ...],
) -> Counterexample:
    """Sizes s = t^w for which a term outgrows every term of a bound."""

    def outgrows() -> bool:
        return costs.outgrows(term, bound, direction, relations)

    return Counterexample(reason, point, outgrows, taken)


def _equal_when(right: Any, count: Polynomial, claimed: Polynomial) -> str:
    """Two sizes that would have to be equal for the claim to be right."""
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
    """Large sizes in a direction, where one polynomial outgrows the other."""
    symbols = {*large.symbols, *small.symbols}
    sizes: dict[str, Any] = {s: 1 for s in symbols if not s.startswith("log ")}
    top = max(direction.values(), default=1) or 1
    step = 1000 if top == 1 else 100 if top == 2 else 10
    grown = {s: step**e for s, e in direction.items() if s in sizes and e > 0}
    sizes |= grown
    for s in symbols - set(sizes):  # log n follows from n
        sizes[s] = Fraction(max(math.log2(sizes.get(s.removeprefix("log "), 1)), 1))
    both = {large_name: large.at(**sizes), small_name: small.at(**sizes)}
    order = ("count", "claim")
    numbers = {name: _number(both[name]) for name in order}
    plain = [s for s in sizes if not s.startswith("log ")]
    others = {"others": 1} if len(grown) < len(plain) else {}
    return {**grown, **others, **numbers}


def _number(x: Any) -> int | float:
    return x if isinstance(x, int) else float(x)
