"""Means and variances of q·k and of products: symbolic, and by simulation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.proofs._evaluate import EXACT, Scope, scalar_value
from kerneltrick.proofs._identity import substitutions
from kerneltrick.proofs._psd import is_dot
from kerneltrick.proofs._sympy import Expr, sympy, write
from kerneltrick.proofs._syntax import MOMENTS, ClaimError, Node, Reader, Side, names
from kerneltrick.proofs._verdict import Verdict

DRAWS = 40_000
WIDTH = 16  # d of the simulation
RANDOM = ("q", "k", "x", "y", "z")  # independent random variables; q and k also as vectors
DOT = "q·k"


def check_moments(claim: str, *, seed: int = 0) -> Verdict:
    """Whether a claim about E[…] and Var[…] holds, such as "Var[q·k] = d*sigma**4 where mu = 0".

    q·k is a sum of d products of independent coordinates with means mu_q, mu_k and deviations
    sigma_q, sigma_k (mu and sigma where both are alike); x, y, z, and q, k alone, are independent
    numbers. Conditions: "where mu = 0, sigma = 1", "where s = 1/√d", "where E[x] = 0". The moments
    are computed exactly, E[q·k] = d·μqμk and Var[q·k] = d(σq²σk² + μq²σk² + μk²σq²), and then
    simulated with normal variables as a check.

    >>> print(check_moments("Var[x*y] = Var[x]*Var[y]"))  # doctest: +ELLIPSIS
    FALSE: Var[x*y] = Var[x]*Var[y]
      the sides differ by mu_x²·sigma_y² + mu_y²·sigma_x²
      - Var[x*y] is mu_x²·sigma_y² + mu_y²·sigma_x² + sigma_x²·sigma_y²; simulated ...
      - right where mu_x = 0, mu_y = 0
      counterexample: mu_x = 1, mu_y = 2, sigma_x = 2, sigma_y = 3, left = 61, right = 36
    """
    reader = Reader(claim)
    sides = reader.relation()
    where = reader.conditions()
    if len(sides) != 2 or sides[1].relation != "=":
        at = sides[1].node.at if len(sides) > 1 else len(claim)
        raise ClaimError(claim, at, "a claim about moments has two sides: Var[q·k] = d")
    conditions = [_moment_condition(claim, c) for c in where]
    said = set[str]().union(*(names(side.node) for c in (sides, *conditions) for side in c))
    given = _Given(substitutions(claim, conditions), said)
    left, right = (_value(claim, side.node, given) for side in sides)
    difference = sympy.expand(sympy.simplify(left - right))
    details = [_simulated(claim, node, given, seed) for side in sides for node in _calls(side.node)]
    if difference == 0:
        reason = f"both sides are {write(sympy.expand(left))}"
        return Verdict("true", claim, reason, tuple(dict.fromkeys(details)))
    details.append(_repaired(difference))
    values = {s: _pick(s, i) for i, s in enumerate(sorted(difference.free_symbols, key=str))}
    others = (left.free_symbols | right.free_symbols) - set(values)
    values |= {s: _pick(s, 1) for s in sorted(others, key=str)}
    numbers = {"left": _number(left.subs(values)), "right": _number(right.subs(values))}
    if numbers["left"] == numbers["right"]:
        return Verdict("undecided", claim, f"the sides differ by {write(difference)}, but not here")
    return Verdict(
        "false",
        claim,
        f"the sides differ by {write(difference)}",
        tuple(dict.fromkeys(filter(None, details))),
        {**{str(s): v for s, v in values.items()}, **numbers},
        "counterexample",
    )


def _moment_condition(claim: str, sides: list[Side]) -> list[Side]:
    """E[x] = 0 as mu_x = 0, and Var[x] = 1 as sigma_x = √1."""
    node = sides[0].node
    if node.kind != "call" or node.value not in MOMENTS or len(sides) != 2:
        return sides
    inner = node.parts[0]
    if inner.kind != "name" or inner.value not in RANDOM:
        raise ClaimError(claim, inner.at, f"conditions are on one of {', '.join(RANDOM)}")
    if node.value == "E":
        return [Side("", Node("name", node.at, f"mu_{inner.value}")), sides[1]]
    root = Node("call", sides[1].node.at, "sqrt", (sides[1].node,))
    return [Side("", Node("name", node.at, f"sigma_{inner.value}")), Side(sides[1].relation, root)]


class _Given:
    """Letters as symbols or as what is said of them, and whether q and k have laws of their own."""

    def __init__(self, value: Callable[[str], Expr], said: set[str]) -> None:
        self.value = value
        self.apart = bool(said & {"mu_q", "mu_k", "sigma_q", "sigma_k"})

    def __call__(self, name: str) -> Expr:
        return self.value(name)


def _value(claim: str, node: Node, given: _Given) -> Expr:
    """A side of the claim, with every E[…] and Var[…] as its formula."""

    def letter(name: str) -> Expr:
        return _positive(given(name), name)

    if node.kind == "call" and node.value in MOMENTS:
        return _moment(claim, node, given)
    replaced = {f"moment {i}": part for i, part in enumerate(_calls(node))}
    swapped = _swap(node, {id(part): name for name, part in replaced.items()})
    scope = Scope(
        claim,
        {},
        lambda name: _moment(claim, replaced[name], given) if name in replaced else letter(name),
    )
    return scalar_value(swapped, scope)


def _positive(value: Expr, name: str) -> Expr:
    """d, s and σ are positive; means have any sign."""
    if value.is_Symbol and (name in ("d", "s") or name.startswith("sigma")):
        return sympy.Symbol(name, positive=True)
    return value.subs({s: sympy.Symbol(str(s), positive=True) for s in value.free_symbols
                       if str(s) in ("d", "s") or str(s).startswith("sigma")})  # fmt: skip


def _swap(node: Node, replaced: dict[int, str]) -> Node:
    if id(node) in replaced:
        return Node("name", node.at, replaced[id(node)])
    return node._replace(parts=tuple(_swap(part, replaced) for part in node.parts))


def _calls(node: Node) -> list[Node]:
    if node.kind == "call" and node.value in MOMENTS:
        return [node]
    return [call for part in node.parts for call in _calls(part)]


def _moment(claim: str, node: Node, given: _Given) -> Expr:
    """E or Var of an expression in independent random variables and q·k."""
    variables = {name: sympy.Symbol(f"random {name}", real=True) for name in (*RANDOM, DOT)}
    inner = _random(claim, node.parts[0], variables, given)
    if node.value == "E":
        return sympy.expand(_mean(claim, node, inner, variables, given))
    mean = _mean(claim, node, inner, variables, given)
    return sympy.expand(_mean(claim, node, sympy.expand(inner**2), variables, given) - mean**2)


def _random(claim: str, node: Node, variables: dict[str, Expr], given: _Given) -> Expr:
    swapped = _dots(node)
    if DOT in names(swapped) and names(swapped) & {"q", "k"}:
        raise ClaimError(claim, node.at, "q·k together with q or k alone is not independent")
    if _calls(node):
        raise ClaimError(claim, node.at, "E[…] and Var[…] do not stand inside each other")

    def letter(name: str) -> Expr:
        return variables[name] if name in variables else _positive(given(name), name)

    return sympy.expand(scalar_value(swapped, Scope(claim, {}, letter, EXACT)))


def _dots(node: Node) -> Node:
    if is_dot(node):
        return Node("name", node.at, DOT)
    return node._replace(parts=tuple(map(_dots, node.parts)))


def _mean(claim: str, node: Node, inner: Expr, variables: dict[str, Expr], given: _Given) -> Expr:
    symbols = list(variables.values())
    if not inner.is_polynomial(*symbols):
        raise ClaimError(claim, node.at, "moments are known of polynomials in the variables only")
    total = sympy.Integer(0)
    for powers, c in sympy.Poly(inner, *symbols, domain="EX").terms():
        term = c
        for name, power in zip(variables, powers, strict=True):
            term *= _power_mean(claim, node, name, power, given)
        total += term
    return total


def _power_mean(claim: str, node: Node, name: str, power: int, given: _Given) -> Expr:
    """E[xᵖ] for p ≤ 2 whatever the law, for p ≤ 4 of a normal one; E[(q·k)ᵖ] for p ≤ 2."""
    if power == 0:
        return sympy.Integer(1)
    if name == DOT:
        d = _positive(given("d"), "d")
        (a, s), (b, t) = (_law(x, given) for x in ("q", "k"))
        mean = d * a * b
        if power == 1:
            return mean
        if power == 2:
            return d * (s**2 * t**2 + a**2 * t**2 + b**2 * s**2) + mean**2
        raise ClaimError(claim, node.at, "moments of q·k are known up to the second power")
    m, s = _law(name, given)
    known = {1: m, 2: m**2 + s**2, 3: m**3 + 3 * m * s**2,
             4: m**4 + 6 * m**2 * s**2 + 3 * s**4}  # fmt: skip
    if power not in known:
        raise ClaimError(claim, node.at, "moments are known up to the fourth power")
    return known[power]


def _law(name: str, given: _Given) -> tuple[Expr, Expr]:
    """μ and σ of a variable: its own, or for q and k those of both if no own ones are named."""
    tail = "" if name in ("q", "k") and not given.apart else f"_{name}"
    mu, sigma = f"mu{tail}", f"sigma{tail}"
    return given(mu), _positive(given(sigma), sigma)


def _repaired(difference: Expr) -> str:
    """Means that, set to zero, make the claim right."""
    means = sorted((s for s in difference.free_symbols if str(s).startswith("mu")), key=str)
    if means and sympy.expand(difference.subs(dict.fromkeys(means, 0))) == 0:
        return "right where " + ", ".join(f"{s} = 0" for s in means)
    return ""


def _simulated(claim: str, node: Node, given: _Given, seed: int) -> str:
    """One moment as a formula and as a mean over draws, with the z-score between them."""
    formula = _moment(claim, node, given)
    text = claim[node.at : _end(claim, node.at)]
    rng = np.random.default_rng([seed, *text.encode()])
    values: dict[str, float] = {"d": WIDTH, "s": 0.5}
    for s in formula.free_symbols:
        values.setdefault(str(s), 0.5 if str(s).startswith("mu") else 1.5)

    def number(expression: Expr) -> float:
        letters = expression.free_symbols
        return float(expression.subs({s: values.get(str(s), 1.0) for s in letters}))

    def draw(name: str, *shape: int) -> Any:
        mean, deviation = (number(x) for x in _law(name, given))
        return mean + deviation * rng.standard_normal((DRAWS, *shape))

    variables = {name: draw(name) for name in RANDOM}
    variables[DOT] = (draw("q", WIDTH) * draw("k", WIDTH)).sum(axis=1)
    symbols = {name: sympy.Symbol(f"random {name}", real=True) for name in variables}
    inner = _random(claim, node.parts[0], symbols, given)
    free = {s: values.get(str(s), 1.0) for s in inner.free_symbols - set(symbols.values())}
    function = sympy.lambdify(list(symbols.values()), inner.subs(free), "numpy")
    sample = np.broadcast_to(np.asarray(function(*variables.values()), dtype=float), DRAWS)
    centred = sample if node.value == "E" else (sample - sample.mean()) ** 2
    error = max(float(centred.std()) / math.sqrt(DRAWS), 1e-12)
    wanted = number(formula)
    z = (float(centred.mean()) - wanted) / error
    return (
        f"{text} is {write(formula)}; simulated {centred.mean():.4g} where the formula gives "
        f"{wanted:.4g} (z = {z:+.1f})"
    )


def _end(claim: str, start: int) -> int:
    """The end of E[…] that begins at `start`."""
    depth = 0
    for i in range(start, len(claim)):
        depth += (claim[i] in "[(") - (claim[i] in "])")
        if depth == 0 and claim[i] in "])":
            return i + 1
    return len(claim)


def _pick(symbol: Expr, place: int) -> int:
    name = str(symbol)
    return 4 if name == "d" else 2 + place % 2 if name.startswith("sigma") else 1 + place % 3


def _number(x: Expr) -> Any:
    x = sympy.nsimplify(x)
    return int(x) if x.is_Integer else str(x) if x.is_Rational else float(x)
