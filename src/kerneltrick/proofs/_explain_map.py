"""Explain in words what is wrong with a feature map. Nothing here affects the verdict."""

from __future__ import annotations

from typing import Any

from kerneltrick.proofs._evaluate import Scope, scalar_value
from kerneltrick.proofs._monomials import explain, feature_table, kernel_table, wrong_monomials
from kerneltrick.proofs._own_maps import monomial_features, own_features, own_kernel
from kerneltrick.proofs._series import parting_degree
from kerneltrick.proofs._statement import Statement
from kerneltrick.proofs._symbolic import Kernel, NotSymbolicError, Phi, letters_as_symbols, symbols
from kerneltrick.proofs._sympy import Expr, sympy
from kerneltrick.proofs._syntax import degree

SHOWN = 8  # wrong monomials listed
LARGEST = (
    4,
    200,
    12,
)  # the largest d, number of features and degree for which monomials are listed

Explanation = tuple[str, tuple[str, ...], dict[str, Any]]


def explanation(phi: Phi, kernel: Kernel, statement: Statement, d: int) -> Explanation:
    """The reason, details and facts for a map that does not give the kernel in dimension d."""
    reason, facts = f"the sides differ at a point (d = {d})", {"d": d}
    if d > LARGEST[0]:
        return reason, (), facts
    xs, qs, ks = symbols(d)
    try:
        features, expression = _features(phi, xs), _kernel(kernel, qs, ks)
    except NotSymbolicError:
        return reason, (), facts
    if features is None or expression is None or len(features) > LARGEST[1]:
        return reason, (), facts
    facts["features"] = len(features)
    if all(f.is_polynomial(*xs) for f in features) and _small(phi, kernel):
        expanded = sympy.expand(expression)
        if expanded.is_polynomial(*qs, *ks):
            found, uses = feature_table(features, xs)
            wrong = wrong_monomials(kernel_table(expanded, qs, ks), found, uses)
            lines = [explain(w, [str(x)[1:] for x in xs]) for w in wrong[:SHOWN]]
            if len(wrong) > SHOWN:
                lines.append(f"and {len(wrong) - SHOWN} more")
            count = "one monomial is" if len(wrong) == 1 else f"{len(wrong)} monomials are"
            facts["wrong"] = len(wrong)
            return f"{count} wrong (d = {d})", tuple(lines), facts
    parting = parting_degree(statement) if d == 1 else None
    line = f"the power series in q and k first differ at degree {parting}"
    return reason, () if parting is None else (line,), facts


def _small(phi: Phi, kernel: Kernel) -> bool:
    """Whether the polynomials are small enough to write out."""
    nodes = [x for x in (phi.node, kernel.node) if x is not None]
    return all(degree(node) <= LARGEST[2] for node in nodes)


def _features(phi: Phi, xs: list[Expr]) -> list[Expr] | None:
    if phi.map is None:
        return phi.symbolic(xs)
    listed = monomial_features(phi.map, xs)
    if listed is not None:
        return listed
    node = own_features(phi.map)
    if node is None:
        return None
    own = Phi("[1]")
    own.node = node
    return own.symbolic(xs)


def _kernel(kernel: Kernel, qs: list[Expr], ks: list[Expr]) -> Expr | None:
    if kernel.map is None:
        return kernel.symbolic(qs, ks)
    known = own_kernel(kernel.map)
    if known is not None:
        scope = Scope("", {"q": qs, "k": ks}, letters_as_symbols(len(qs)))
        return scalar_value(known[0], scope)
    at_q, at_k = (_features(Phi(kernel.map), xs) for xs in (qs, ks))
    if at_q is None or at_k is None:
        return None
    return sum((a * b for a, b in zip(at_q, at_k, strict=True)), sympy.Integer(0))
