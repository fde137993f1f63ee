"""Decide whether φ(q)·φ(k) equals a kernel."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from fractions import Fraction

from kerneltrick import maps
from kerneltrick.proofs._black_box import compare_numbers
from kerneltrick.proofs._derive import assumptions
from kerneltrick.proofs._evaluate import scalar_value
from kerneltrick.proofs._explain_map import explanation
from kerneltrick.proofs._identity import decide_equation
from kerneltrick.proofs._number import Number
from kerneltrick.proofs._own_maps import own_features, own_kernel
from kerneltrick.proofs._random import check_drawn_function, check_favor
from kerneltrick.proofs._search import FoundValues
from kerneltrick.proofs._some import check_some
from kerneltrick.proofs._statement import Statement, breaks
from kerneltrick.proofs._symbolic import (
    FLOATS_READ,
    Kernel,
    KernelLike,
    NotSymbolicError,
    Phi,
    PhiLike,
    as_node,
    symbols,
    with_ones,
)
from kerneltrick.proofs._syntax import ClaimError, Node, largest_index, names, place, renamed
from kerneltrick.proofs._verdict import Counterexample, Derivation, Verdict

DIMENSIONS = (1, 2, 3, 4)  # for functions: they are run on symbols of these widths
_ZERO = Node("number", 0, Fraction(0))


def check_feature_map(
    phi: PhiLike,
    kernel: KernelLike | None = None,
    d: int | Sequence[int] | None = None,
    *,
    some: Sequence[str] = (),
) -> Verdict:
    """Decide whether φ(q)·φ(k) = k(q, k). A refutation lists wrong monomials and how to fix them.

    `phi` is a text such as "[1, √2*x, x[i]*x[j] for i<=j]", a feature map or its name, or a
    function. `kernel` is a text such as "(q·k + 1)**2", a map or a function; None stands for the
    map's own kernel. Texts and maps are compared in every dimension at once, or in `d` if it is
    given. Functions are run on symbols, for d = 1 to 4 by default. A function that cannot be run
    on symbols is compared at points, which can refute a claim but not prove it. Random functions
    are judged by their mean over seeds. `some` names parameters of φ that may be chosen freely.

    >>> print(check_feature_map("[x[i]*x[j] for i<=j]", "(q·k)**2", d=2))
    FALSE: [x[i]*x[j] for i<=j] gives (q·k)**2
      one monomial is wrong (d = 2)
      - x₁·x₂: kernel has 2, φ·φ has 1 → scale this feature by √2
      counterexample: q = (1, 2), k = (3, 4), φ(q)·φ(k) = 97, kernel = 121
      assumed: all numbers are real
    """
    wanted_map = Phi(phi)
    if kernel is None:
        if wanted_map.map is None:
            raise ValueError("a kernel is needed, because φ is not one of kerneltrick's maps")
        kernel = wanted_map.map
    wanted = Kernel(kernel)
    own = kernel is wanted_map.map
    claim = f"{wanted_map.text} gives {'its kernel' if own else wanted.text}"
    if some:
        claim += f" for some {', '.join(some)}"
    _check_names(wanted_map, wanted, some)
    widths = _dimensions(d)
    if wanted_map.random and not isinstance(wanted_map.map, maps.Favor):
        return check_drawn_function(claim, phi, wanted, widths[-1] or 1)
    left, why = _product(wanted_map)
    right = _kernel(wanted)
    if left is None or right is None:
        if own and isinstance(wanted_map.map, maps.FeatureMap):
            return _by_definition(claim, wanted_map.map)
        if widths == [None]:
            widths = list(DIMENSIONS)
            claim += f" for d = {DIMENSIONS[0]} to {DIMENSIONS[-1]}"
    open_ = None
    for width in widths:  # one dimension refutes, all are needed for a proof
        judged = _judge(claim, wanted_map, wanted, left, right, width, why, tuple(some))
        if judged.status == "false":
            return judged
        open_ = judged if judged.status == "undecided" else open_
    return open_ or judged


def _dimensions(d: int | Sequence[int] | None) -> list[int | None]:
    if d is None:
        return [None]
    found = [d] if isinstance(d, int) else list(d)
    if not found or any(isinstance(x, bool) or not 1 <= x <= 12 for x in found):
        raise ValueError(f"d must be from 1 to 12, not {d!r}")
    return list(found)


def _check_names(phi: Phi, kernel: Kernel, some: Sequence[str]) -> None:
    """Check that kernels are functions of q and k, and that names in `some` occur."""
    if kernel.node is not None:
        for name in sorted(names(kernel.node) & {"x", "y", "w"}):
            at = place(kernel.node, name)
            raise ClaimError(kernel.text, at, f"a kernel is a function of q and k, not of {name}")
        least = largest_index(phi.node, kernel.node)
        ones = [Number(1)] * least
        with contextlib.suppress(ArithmeticError):  # an error points into the text of the kernel
            scalar_value(kernel.node, with_ones(kernel.text, {"q": ones, "k": ones}, least))
    known = phi.parameters | kernel.parameters
    for name in some:
        if name not in known:
            raise ValueError(f"{name} may be chosen freely, but it does not occur in the claim")


def _by_definition(claim: str, feature_map: maps.FeatureMap) -> Verdict:
    """The verdict on a kerneltrick map without an exact form, such as one with learned weights."""
    if type(feature_map).kernel is maps.FeatureMap.kernel:
        return Verdict.true(claim, Derivation("its kernel is defined as φ(q)·φ(k)"))
    return Verdict.undecided(claim, f"{feature_map} has no exact form that could be compared")


def _product(phi: Phi) -> tuple[Node | None, str]:
    """φ(q)·φ(k) as an expression, and the theorem that it needs, if any."""
    features = phi.node
    if phi.map is not None:
        known = own_kernel(phi.map)
        if known is not None:
            return known
        features = own_features(phi.map)
    return (None if features is None else product_of(features)), ""


def product_of(features: Node) -> Node:
    """Σ f(q)·f(k) over the features of a list."""
    parts = []
    for item in features.parts:
        if item.kind == "for":
            indices, body = item.parts
            both = _op("*", renamed(body, "x", "q"), renamed(body, "x", "k"))
            parts.append(Node("sum", item.at, "", (indices, both)))
        else:
            parts.append(_op("·", renamed(item, "x", "q"), renamed(item, "x", "k")))
    return functools.reduce(lambda a, b: _op("+", a, b), parts)


def _op(sign: str, left: Node, right: Node) -> Node:
    return Node("op", left.at, sign, (left, right))


def _kernel(kernel: Kernel) -> Node | None:
    if kernel.map is not None:
        return _product(Phi(kernel.map))[0]
    return kernel.node


def _judge(
    claim: str,
    phi: Phi,
    kernel: Kernel,
    left: Node | None,
    right: Node | None,
    d: int | None,
    why: str,
    some: tuple[str, ...],
) -> Verdict:
    taken = tuple(_implied(phi))
    if left is None or right is None:
        assert d is not None
        xs, qs, ks = symbols(d)
        try:
            if left is None:
                left = _of_symbols([as_node(f) for f in phi.symbolic(xs)])
                taken = (*taken, FLOATS_READ)
            right = right or as_node(kernel.symbolic(qs, ks))
        except NotSymbolicError as error:
            return compare_numbers(claim, phi, kernel, d, str(error))
    text = phi.text if phi.node is not None else kernel.text
    statement = Statement(text, left, "=", right, (), d)
    if some:
        return check_some(claim, statement, some)
    found = decide_equation(statement)
    if isinstance(phi.map, maps.Favor):
        return check_favor(claim, phi.map, kernel, statement, found, why)
    if isinstance(found, Derivation):
        reason = found.reason.replace("both sides", "φ(q)·φ(k) and the kernel")
        reason = f"{why}: {reason}" if why else reason
        facts = {} if d is None else {"d": d, "features": _count(phi, d)}
        return Verdict.true(claim, Derivation(reason, (*found.assumptions, *taken)), (), facts)
    if isinstance(found, str):
        return Verdict.undecided(claim, found)
    return _refuted(claim, phi, kernel, statement, found, taken)


def _implied(phi: Phi) -> list[str]:
    """How features with an index but without `for` are read."""
    if phi.node is None:
        return []
    loose = [
        x.parts[0].parts[0] for x in phi.node.parts if x.kind == "for" and x.at == x.parts[1].at
    ]
    return [f"features with [{x.value}] are repeated for every {x.value}" for x in loose[:1]]


def _of_symbols(features: list[Node]) -> Node:
    return product_of(Node("list", 0, "", tuple(features) or (_ZERO,)))


def _count(phi: Phi, d: int) -> int:
    return phi.map.dim(d) if phi.map is not None else len(phi.symbolic(symbols(d)[0]))


def _refuted(
    claim: str,
    phi: Phi,
    kernel: Kernel,
    statement: Statement,
    found: FoundValues,
    taken: tuple[str, ...],
) -> Verdict:
    reason, details, facts = explanation(phi, kernel, statement, found.d)
    values = {**found.shown(statement), **found.sides("φ(q)·φ(k)", "kernel")}
    example = Counterexample(
        reason,
        values,
        lambda: breaks(statement, found.d, found.point) is not None,
        (*assumptions(statement), *taken),
    )
    return Verdict.false(claim, example, details, facts)
