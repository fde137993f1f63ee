"""Decide claims about means and variances, with exact formulas and a simulation."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from kerneltrick.proofs._coefficients import as_expression, as_sympy
from kerneltrick.proofs._derive import assumptions, derive, fixed_dimension, setting
from kerneltrick.proofs._evaluate import evaluate, float_scope, scalar_value
from kerneltrick.proofs._form import Form, NotNormalError, atom, number, power
from kerneltrick.proofs._identity import decide_equation
from kerneltrick.proofs._kernel_rules import is_dot
from kerneltrick.proofs._normal import Space, scalar
from kerneltrick.proofs._search import NOTHING
from kerneltrick.proofs._statement import Condition, Statement, breaks, read_conditions
from kerneltrick.proofs._sympy import Expr, write
from kerneltrick.proofs._syntax import MOMENTS, ClaimError, Node, Reader, names, place
from kerneltrick.proofs._verdict import Counterexample, Derivation, Verdict

DRAWS = 40_000
WIDTH = 16  # d of the simulation
RANDOM = ("q", "k", "x", "y", "z")  # independent random variables; q and k can be vectors
DOT = "q·k"
POLYNOMIALS = "moments are known only for polynomials in the random variables"
_LAW = re.compile(r"(mu|sigma)(_\w+)?")
_ZERO = Node("number", 0, Fraction(0))


def check_moments(claim: str, *, seed: int = 0) -> Verdict:
    """Decide a claim about means and variances, such as "Var[q·k] = d*sigma**4 where mu = 0".

    The random variables are q, k, x, y and z. They are independent, and each has a law of its own:
    x has mean mu_x and standard deviation sigma_x, and so on. A claim that writes mu or sigma
    without a subscript says that q and k share that mean or that deviation. In q·k, q and k are
    vectors of d independent coordinates; every coordinate has the law of its vector. Outside q·k
    they are single numbers. All other letters are constants.

    Conditions follow "where": "where mu = 0, sigma = 1", "where s = 1/√d", "where E[x] = 0". First
    and second moments are computed for any law. Third and fourth moments are those of a normal law;
    the verdict says so. A simulation with normal variables is shown next to each formula. It does
    not affect the verdict.

    >>> print(check_moments("Var[x*y] = Var[x]*Var[y]"))  # doctest: +ELLIPSIS
    FALSE: Var[x*y] = Var[x]*Var[y]
      the sides differ by mu_x²·sigma_y² + mu_y²·sigma_x²
      - Var[x*y] is mu_x²·sigma_y² + mu_y²·sigma_x² + sigma_x²·sigma_y²; simulated ...
      - right where mu_x = 0, mu_y = 0
      counterexample: mu_x = 2, mu_y = 3, sigma_x = 4, sigma_y = 5, left = 644, right = 400
      assumed: all numbers are real; x and y are independent; standard deviations are ≥ 0
    """
    reader = Reader(claim)
    sides = reader.relation()
    where = read_conditions(claim, reader.conditions())
    if len(sides) != 2 or sides[1].relation != "=":
        at = sides[1].node.at if len(sides) > 1 else len(claim)
        raise ClaimError(claim, at, "a claim about moments is an equation such as Var[q·k] = d")
    laws = _Laws(claim, [side.node for side in sides], where)
    left, right = (laws.without_moments(side.node) for side in sides)
    conditions = tuple(map(laws.condition, where))
    statement = Statement(claim, left, "=", right, conditions)
    laws.letters |= statement.letters
    deviations = sorted(x for x in laws.letters if re.fullmatch(r"sigma(_\w+)?", x))
    limits = tuple(Condition(Node("name", 0, x), ">=", _ZERO) for x in deviations)
    statement = statement._replace(conditions=(*conditions, *limits))
    found = decide_equation(statement)
    if found == NOTHING:
        return Verdict.undecided(claim, NOTHING)
    taken = (*assumptions(statement), *laws.assumptions())
    calls = [call for side in sides for call in _calls(side.node)]
    with np.errstate(all="ignore"):  # conditions may contain the root of a negative number
        details = [_simulated(claim, call, laws, statement, seed) for call in calls]
    if isinstance(found, str):
        return Verdict.undecided(claim, found, tuple(dict.fromkeys(details)))
    text = _difference(statement)
    if isinstance(found, Derivation):
        value = _as_text(scalar(left, setting(statement).space))
        reason = f"both sides are {value}" if value else found.reason
        return Verdict.true(claim, Derivation(reason, taken), tuple(dict.fromkeys(details)))
    details.append(_repaired(statement))
    example = Counterexample(
        f"the sides differ by {text}" if text else "the sides differ at a point",
        {**found.shown(statement), **found.sides("left", "right")},
        lambda: breaks(statement, found.d, found.point) is not None,
        taken,
    )
    return Verdict.false(claim, example, tuple(dict.fromkeys(filter(None, details))))


class _Laws:
    """Formulas for E[…] and Var[…] in the means and standard deviations of the variables."""

    def __init__(self, claim: str, sides: list[Node], where: tuple[Condition, ...]) -> None:
        self.claim, self.normal, self.letters = claim, set[str](), set[str]()
        self.used, self.constants, self.dotted = set[str](), set[str](), False
        nodes = [*sides, *(x for c in where for x in (c.left, c.right))]
        for node in nodes:
            bare = _without_calls(node)
            for name in sorted(names(bare) & set(RANDOM)):
                problem = f"{name} is random: it must stand inside E[…] or Var[…]"
                raise ClaimError(claim, place(bare, name), problem)
        outside = set[str]().union(*(names(_without_calls(x)) for x in nodes))
        self.shared = outside & {"mu", "sigma"}
        self._check_shared(outside, nodes, where)

    def _check_shared(
        self, outside: set[str], nodes: list[Node], where: tuple[Condition, ...]
    ) -> None:
        """Refuse a mean or deviation that q and k share if one of them has its own as well."""
        bare = list(map(_without_calls, nodes))
        conditions = [call for c in where for x in (c.left, c.right) for call in _calls(x)]
        for letter, moment in (("mu", "E"), ("sigma", "Var")):
            if letter not in self.shared:
                continue
            at = next(place(x, letter) for x in bare if letter in names(x))
            for own in (f"{letter}_k", f"{letter}_q"):
                if own in outside:
                    problem = f"{letter} belongs to both q and k, but {own} to one; use one of them"
                    raise ClaimError(self.claim, at, problem)
            for call in conditions:
                if call.value == moment and names(call) & {"q", "k"}:
                    problem = (
                        f"{letter} already stands for {moment}[q] and {moment}[k]; use {letter}_q "
                        f"and {letter}_k, or another letter"
                    )
                    raise ClaimError(self.claim, call.at, problem)
            if not any(names(call) & {"q", "k"} for x in nodes for call in _calls(x)):
                problem = f"{letter} belongs to q and k, which do not occur; for x write {letter}_x"
                raise ClaimError(self.claim, at, problem)

    def named(self, name: str) -> tuple[str, str]:
        """The letters for the mean and the deviation of a variable."""
        mean, deviation = (
            letter if name in ("q", "k") and letter in self.shared else f"{letter}_{name}"
            for letter in ("mu", "sigma")
        )
        self.letters |= {mean, deviation}
        self.used.add(name)
        return mean, deviation

    def law(self, name: str) -> tuple[Form, Form]:
        mean, deviation = self.named(name)
        return atom("name", mean), atom("name", deviation)

    def assumptions(self) -> list[str]:
        """What the formulas take for granted, as sentences of the verdict."""
        found = []
        if self.dotted:
            found.append("the coordinates of q and k are independent")
            found.append("the coordinates of each vector have the same law")
        numbers = sorted(self.used - ({"q", "k"} if self.dotted else set()))
        if len(numbers) > 1:
            found.append(f"{' and '.join(numbers)} are independent")
        elif numbers and self.dotted:
            found.append(f"{numbers[0]} is independent of q and k")
        if {"q", "k"} <= self.used:
            found.append(self._shared_or_not())
        if self.normal:
            found.append(
                f"the law of {' and '.join(sorted(self.normal))} is normal (third and "
                "fourth moments of other laws differ)"
            )
        if self.constants:
            verb = "is a constant" if len(self.constants) == 1 else "are constants"
            found.append(f"{' and '.join(sorted(self.constants))} {verb}")
        if any(x.startswith("sigma") for x in self.letters):
            found.append("standard deviations are ≥ 0")
        return found

    def _shared_or_not(self) -> str:
        words = {"mu": "the same mean mu", "sigma": "the same deviation sigma"}
        same = [words[letter] for letter in sorted(self.shared)]
        if same:
            return f"q and k have {' and '.join(same)}"
        return "q and k may have different laws"

    def condition(self, said: Condition) -> Condition:
        """Rewrite E[x] = 0 as mu_x = 0, and Var[x] = 1 as sigma_x = √1."""
        left, relation, right = said
        if left.kind == "call" and left.value in MOMENTS:
            inner = left.parts[0]
            if inner.kind != "name" or inner.value not in RANDOM:
                raise ClaimError(
                    self.claim,
                    inner.at,
                    f"E[…] and Var[…] in a condition contain one of {', '.join(RANDOM)}",
                )
            mean, deviation = (Node("name", left.at, name) for name in self.named(str(inner.value)))
            right = self.without_moments(right)
            if left.value == "E":
                return Condition(mean, relation, right)
            return Condition(deviation, relation, Node("call", right.at, "sqrt", (right,)))
        return Condition(self.without_moments(left), relation, self.without_moments(right))

    def without_moments(self, node: Node) -> Node:
        """Replace every E[…] and Var[…] in an expression by its formula."""
        if node.kind == "call" and node.value in MOMENTS:
            return as_expression(self.moment(node))
        return node._replace(parts=tuple(map(self.without_moments, node.parts)))

    def moment(self, node: Node) -> Form:
        """E or Var of an expression in independent random variables and q·k."""
        inner = self._inside(node)
        mean = self._mean(node, inner)
        return mean if node.value == "E" else self._mean(node, inner * inner) - mean * mean

    def _inside(self, node: Node) -> Form:
        """The expression inside E[…] or Var[…], a polynomial in the random variables."""
        swapped = dots(node.parts[0])
        inside = names(swapped)
        if DOT in inside and inside & {"q", "k"}:
            problem = "q·k is not independent of q or k; they cannot stand in one E[…] or Var[…]"
            raise ClaimError(self.claim, node.at, problem)
        for product in _products(swapped):
            if all(names(part) & set(RANDOM) for part in product.parts):
                problem = "q·k is the only dot product known here; write x*y for numbers"
                raise ClaimError(self.claim, product.at, problem)
        if _calls(node.parts[0]):
            problem = "E[…] and Var[…] cannot be nested"
            raise ClaimError(self.claim, node.at, problem)
        constants = {x for x in inside - {*RANDOM, DOT, "d", "pi", "π"} if not _LAW.fullmatch(x)}
        if constants and not inside & {*RANDOM, DOT}:
            problem = f"nothing in {node.value}[…] is random; random are {', '.join(RANDOM)}"
            raise ClaimError(self.claim, node.at, problem)
        self.constants |= constants
        values = float_scope(self.claim, {}, lambda _: np.ones(()))
        with np.errstate(all="ignore"):
            scalar_value(swapped, values)  # refuses what cannot be read
        if not _is_polynomial(swapped):
            raise ClaimError(self.claim, node.at, POLYNOMIALS)
        try:
            return scalar(swapped, Space(set(), None, 0))
        except (NotNormalError, ZeroDivisionError):
            raise ClaimError(self.claim, node.at, POLYNOMIALS) from None

    def _mean(self, node: Node, inner: Form) -> Form:
        total = Form({})
        for m, c in inner.terms.items():
            term = number(c)
            for a, e in m:
                if a[0] == "name" and a[1] in (*RANDOM, DOT):
                    if e.denominator != 1 or e < 0:
                        raise ClaimError(self.claim, node.at, POLYNOMIALS)
                    term = term * self._power_mean(node, a[1], int(e))
                elif a[0] in ("name", "prime", "pi", "rest"):
                    term = term * power(atom(*a), e)
                else:
                    raise ClaimError(self.claim, node.at, POLYNOMIALS)
            total += term
        return total

    def _power_mean(self, node: Node, name: str, e: int) -> Form:
        """E[xᵖ] for p ≤ 2 and any law, for p ≤ 4 and a normal law; E[(q·k)ᵖ] for p ≤ 2."""
        three, six = number(3), number(6)
        if name == DOT:
            self.dotted = True
            d = atom("rest")
            (a, s), (b, t) = self.law("q"), self.law("k")
            mean = d * a * b
            if e == 1:
                return mean
            if e == 2:
                own = s * s * t * t + a * a * t * t + b * b * s * s
                return d * own + power(mean, Fraction(2))
            problem = "moments of q·k are known up to the second power"
            raise ClaimError(self.claim, node.at, problem)
        m, s = self.law(name)
        if e > 2:
            self.normal.add(name)
        known = {
            1: m,
            2: power(m, Fraction(2)) + s * s,
            3: power(m, Fraction(3)) + three * m * s * s,
            4: power(m, Fraction(4)) + six * m * m * s * s + three * power(s * s, Fraction(2)),
        }
        if e not in known:
            raise ClaimError(self.claim, node.at, "moments are known up to the fourth power")
        return known[e]


def dots(node: Node) -> Node:
    """Replace q·k in an expression by a single name."""
    if is_dot(node):
        return Node("name", node.at, DOT)
    return node._replace(parts=tuple(map(dots, node.parts)))


def _is_polynomial(node: Node) -> bool:
    """Whether the random variables are only added, multiplied and raised to whole powers.

    x**2/x and sqrt(x)**2 have simple normal forms, but are not defined for every x.
    """
    kept = set[str]()
    if node.kind == "call":
        kept = names(node)
    elif node.kind == "op" and node.value == "/":
        kept = names(node.parts[1])
    elif node.kind == "op" and node.value == "**":
        e = node.parts[1].value
        if not (isinstance(e, Fraction) and e.denominator == 1 and e >= 0):
            kept = names(node)
    return not kept & {*RANDOM, DOT} and all(map(_is_polynomial, node.parts))


def _products(node: Node) -> list[Node]:
    """All products written with a dot."""
    own = [node] if node.kind == "op" and node.value == "·" else []
    return own + [product for part in node.parts for product in _products(part)]


def _calls(node: Node) -> list[Node]:
    if node.kind == "call" and node.value in MOMENTS:
        return [node]
    return [call for part in node.parts for call in _calls(part)]


def _without_calls(node: Node) -> Node:
    if node.kind == "call" and node.value in MOMENTS:
        return _ZERO
    return node._replace(parts=tuple(map(_without_calls, node.parts)))


def _difference(statement: Statement) -> str:
    space = setting(statement).space
    try:
        return _as_text(scalar(statement.left, space) - scalar(statement.right, space))
    except (NotNormalError, ZeroDivisionError):
        return ""


def _as_text(form: Form) -> str:
    found: Expr | None = as_sympy(form)
    return "" if found is None else write(found.expand())


def _repaired(statement: Statement) -> str:
    """The note that the claim holds if all means are 0, if it does."""
    means = sorted(x for x in statement.letters if x.startswith("mu"))
    zero = tuple(Condition(Node("name", 0, x), "=", _ZERO) for x in means)
    mended = statement._replace(conditions=(*statement.conditions, *zero))
    if means and isinstance(derive(mended), Derivation):
        return "right where " + ", ".join(f"{x} = 0" for x in means)
    return ""


def _simulated(claim: str, node: Node, laws: _Laws, statement: Statement, seed: int) -> str:
    """One line with the formula of a moment, its simulated value and the z-score."""
    form = laws.moment(node)
    space = setting(statement).space
    formula = scalar(as_expression(form), space)
    text = claim[node.at : _end(claim, node.at)]
    rng = np.random.default_rng([seed, *text.encode()])
    value = _Values(claim, statement)

    def draw(name: str, *shape: int) -> Any:
        mean, deviation = (value(as_expression(x)) for x in laws.law(name))
        return mean + deviation * rng.standard_normal((DRAWS, *shape))

    inside = names(dots(node.parts[0]))
    variables = {name: draw(name) for name in RANDOM if name in inside}
    if DOT in inside:
        variables[DOT] = (draw("q", value.width) * draw("k", value.width)).sum(axis=1)
    sample = np.broadcast_to(value(dots(node.parts[0]), variables), DRAWS)
    centred = sample if node.value == "E" else (sample - sample.mean()) ** 2
    error = max(float(centred.std()) / math.sqrt(DRAWS), 1e-12)
    wanted = value(as_expression(form))
    z = (float(centred.mean()) - wanted) / error
    shown = _as_text(formula) or _as_text(form)
    return (
        f"{text} is {shown}; simulated {centred.mean():.4g} where the formula gives "
        f"{wanted:.4g} (z = {z:+.1f})"
    )


class _Values:
    """Values of letters in a simulation: given by conditions, or arbitrary."""

    def __init__(self, claim: str, statement: Statement) -> None:
        self.claim, self.width = claim, fixed_dimension(statement) or WIDTH
        self.explained = {
            str(left.value): right
            for left, relation, right in statement.conditions
            if relation == "=" and left.kind == "name"
        }

    def __call__(self, node: Node, variables: Mapping[str, Any] | None = None) -> Any:
        known = variables or {}

        def letter(name: str) -> Any:
            if name in known:
                return known[name]
            if name == "d":
                return float(self.width)
            if name in self.explained and name not in names(self.explained[name]):
                return self(self.explained[name])
            return 1.5 if name.startswith("sigma") else 0.5

        return evaluate(node, float_scope(self.claim, {}, letter))


def _end(claim: str, start: int) -> int:
    """The position after the E[…] that begins at `start`."""
    depth = 0
    for i in range(start, len(claim)):
        depth += (claim[i] in "[(") - (claim[i] in "])")
        if depth == 0 and claim[i] in "])":
            return i + 1
    return len(claim)
