"""Is a kernel positive semi-definite? That is a matter of Gram matrices, not of positive values."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from fractions import Fraction

import numpy as np

from kerneltrick.proofs._interval import same
from kerneltrick.proofs._monomials import kernel_table
from kerneltrick.proofs._symbolic import Floats, Kernel, KernelLike, NotSymbolicError, symbols
from kerneltrick.proofs._sympy import Expr, sympy
from kerneltrick.proofs._syntax import Node, largest_index, names
from kerneltrick.proofs._verdict import Verdict

DIMENSIONS = (1, 2, 3)
SETS = 400  # random sets of points per dimension
TOLERANCE = 1e-9  # of the trace: below it an eigenvalue is rounding


def check_psd(kernel: KernelLike, d: int | None = None) -> Verdict:
    """Whether every Gram matrix K_ij = k(x_i, x_j) is symmetric without a negative eigenvalue.

    Proven where the kernel is built from q·k by sums, products, exponentials and factors f(q)f(k),
    or is a polynomial whose coefficients of q^α·k^β form a positive semi-definite matrix; refuted
    by points and their eigenvalue. Otherwise the verdict is "undecided".

    >>> print(check_psd("elu(q·k) + 1"))
    FALSE: elu(q·k) + 1 is positive semi-definite
      the Gram matrix of 4 points (d = 1) has the eigenvalue -0.0114
      counterexample: points = ((-2), (-1), (1), (2)), eigenvalue = -0.0114101
    """
    wanted = Kernel(kernel)
    claim = f"{wanted.text} is positive semi-definite"
    if wanted.map is not None:
        return Verdict("true", claim, "its Gram matrix is ΦΦᵀ, the product of features with itself")
    least = largest_index(wanted.node)
    usual = tuple(x for x in DIMENSIONS if x >= least) or (least,)
    dimensions = usual if d is None else (d,)
    for width in dimensions:
        found = _asymmetry(wanted, width) or _negative(wanted, width)
        if found is not None:
            return Verdict("false", claim, *found)
    reason = _by_rules(wanted.node) if wanted.node is not None else None
    if reason is not None:
        return Verdict("true", claim, reason)
    reason = _by_expression(wanted, dimensions)
    if reason is not None:
        return Verdict("true", claim, reason)
    tried = SETS * len(dimensions)
    return Verdict(
        "undecided",
        claim,
        f"no negative eigenvalue in {tried} Gram matrices (d = {', '.join(map(str, dimensions))}), "
        "and no rule proves that there is none",
    )


Refutation = tuple[str, tuple[str, ...], dict[str, object], str]


def _asymmetry(kernel: Kernel, d: int) -> Refutation | None:
    rng = np.random.default_rng([d, *b"symmetry"])
    q, k = rng.integers(-3, 4, (2, 32, d)).astype(float)
    with np.errstate(all="ignore"):
        there, back = kernel.numeric(q, k), kernel.numeric(k, q)
    wrong = np.abs(there - back) > TOLERANCE * (1 + np.abs(there) + np.abs(back))
    if not wrong.any():
        return None
    i = int(wrong.argmax())
    point = {"q": q[i].tolist(), "k": k[i].tolist(), "k(q, k)": float(there[i]),
             "k(k, q)": float(back[i])}  # fmt: skip
    return "it is not symmetric: k(q, k) ≠ k(k, q)", (), point, "counterexample"


def _negative(kernel: Kernel, d: int) -> Refutation | None:
    for points in _point_sets(d):
        with np.errstate(all="ignore"):
            gram = kernel.gram(points)
        if not np.isfinite(gram).all():
            continue
        if _lowest(gram) is not None:
            kept = _fewest(gram)
            value = _lowest(gram[np.ix_(kept, kept)])
            assert value is not None
            points_word = "point" if len(kept) == 1 else f"{len(kept)} points"
            reason = f"the Gram matrix of {points_word} (d = {d}) has the eigenvalue {value:.3g}"
            shown = [points[i].tolist() for i in kept]
            return reason, (), {"points": shown, "eigenvalue": value}, "counterexample"
    return None


def _lowest(gram: Floats) -> float | None:
    """The lowest eigenvalue, if it is negative beyond rounding."""
    value = float(np.linalg.eigvalsh((gram + gram.T) / 2)[0])
    size = max(float(np.abs(gram).sum()), 1e-300)
    return value if value < -TOLERANCE * size else None


def _fewest(gram: Floats) -> list[int]:
    """As few of the points as still give a negative eigenvalue: those whose removal keeps it."""
    kept = list(range(len(gram)))
    for i in range(len(gram)):
        fewer = [j for j in kept if j != i]
        if fewer and _lowest(gram[np.ix_(fewer, fewer)]) is not None:
            kept = fewer
    return kept


def _point_sets(d: int) -> Iterator[Floats]:
    """Small whole numbers first, then random points of many sizes."""
    grid = [np.array(x, dtype=float) for x in itertools.product((-2, -1, 1, 2), repeat=d)]
    for count in (1, 2, 4, len(grid)):
        yield np.array(grid[:count])
    rng = np.random.default_rng([d, *b"gram"])
    for i in range(SETS):
        n = 2 + i % 9
        size = (0.1, 0.5, 1.0, 2.0, 4.0)[i % 5]
        if i % 2:
            yield np.round(size * rng.standard_normal((n, d)), 2)
        else:
            yield rng.integers(-3, 4, (n, d)).astype(float)


def _by_rules(node: Node) -> str | None:
    """A proof by the ways in which kernels make kernels."""
    steps: list[str] = []
    return "; ".join(dict.fromkeys(steps)) if _psd(node, steps) else None


def _psd(node: Node, steps: list[str]) -> bool:
    if node.kind == "number":
        assert isinstance(node.value, Fraction)
        steps.append("a constant ≥ 0 is one")
        return node.value >= 0
    if is_dot(node):
        steps.append("q·k is a Gram matrix")
        return True
    if node.kind == "call" and node.value == "cosine":
        steps.append("the cosine is the dot product of unit vectors")
        return [str(x.value) for x in node.parts] in (["q", "k"], ["k", "q"])
    if node.kind == "call" and node.value in ("exp", "cosh", "sinh") and len(node.parts) == 1:
        ok = _psd(node.parts[0], steps)
        steps.append(f"{node.value} has a power series with coefficients ≥ 0")
        return ok
    if node.kind == "sum":
        steps.append("sums keep it")
        return _psd(node.parts[1], steps)
    if node.kind != "op":
        return False
    left, right = node.parts
    if node.value == "*" and _mirrored(left, right):
        steps.append("f(q)·f(k) is a Gram matrix with one feature")
        return True
    if node.value == "+":
        ok = _psd(left, steps) and _psd(right, steps)
        steps.append("sums keep it")
        return ok
    if node.value == "*":
        ok = _psd(left, steps) and _psd(right, steps)
        steps.append("products keep it (Schur)")
        return ok
    positive = right.kind in ("number", "call") and _positive_number(right)
    if node.value == "/" and positive:
        return _psd(left, steps)
    if node.value == "**" and isinstance(right.value, Fraction):
        whole = right.value.denominator == 1 and right.value >= 0
        ok = whole and _psd(left, steps)
        steps.append("products keep it (Schur)")
        return ok
    return False


def _mirrored(left: Node, right: Node) -> bool:
    """Whether one side is a function of q alone and the other the same function of k."""
    if names(left) & {"q", "k"} == {"k"}:
        left, right = right, left
    return names(left) & {"q", "k"} == {"q"} and same(_renamed(left), right)


def _renamed(node: Node) -> Node:
    """The expression with k for q."""
    value = "k" if node.kind in ("name", "index") and node.value == "q" else node.value
    return node._replace(value=value, parts=tuple(map(_renamed, node.parts)))


def _positive_number(node: Node) -> bool:
    if node.kind == "number":
        return isinstance(node.value, Fraction) and node.value > 0
    return node.value == "sqrt" and _positive_number(node.parts[0])


def is_dot(node: Node) -> bool:
    dot = (node.kind == "op" and node.value == "·") or (node.kind == "call" and node.value == "dot")
    words = [str(part.value) for part in node.parts if part.kind == "name"]
    return dot and sorted(words) == ["k", "q"]


def _by_expression(kernel: Kernel, dimensions: tuple[int, ...]) -> str | None:
    """A proof for polynomials, and for f(q)·f(k)·exp(polynomial), in the given dimensions."""
    span = f"d = {dimensions[0]} to {dimensions[-1]}" if len(dimensions) > 1 else (
        f"d = {dimensions[0]}"
    )  # fmt: skip
    reasons = set[str]()
    for d in dimensions:
        _, qs, ks = symbols(d)
        try:
            expression = sympy.expand(kernel.symbolic(qs, ks))
        except NotSymbolicError:
            return None
        reason = _expression(expression, qs, ks)
        if reason is None:
            return None
        reasons.add(reason)
    return f"{'; '.join(sorted(reasons))} ({span})"


def _expression(expression: Expr, qs: list[Expr], ks: list[Expr]) -> str | None:
    if expression.free_symbols - {*qs, *ks}:
        return None
    if expression.is_polynomial(*qs, *ks):
        if _coefficients_psd(expression, qs, ks):
            return "its coefficients of q^α·k^β form a positive semi-definite matrix"
        return None
    together = sympy.powsimp(expression)
    if not isinstance(together, sympy.exp):
        return None
    exponent = sympy.expand(together.args[0])
    if not exponent.is_polynomial(*qs, *ks):
        return None
    mixed, alone = sympy.Integer(0), {"q": sympy.Integer(0), "k": sympy.Integer(0)}
    for term in sympy.Add.make_args(exponent):
        has_q, has_k = term.has(*qs), term.has(*ks)
        if has_q and has_k:
            mixed += term
        else:
            alone["q" if has_q else "k"] += term
    swapped = alone["k"].subs(dict(zip(ks, qs, strict=True)), simultaneous=True)
    if (swapped - alone["q"]).has(*qs) or not _coefficients_psd(mixed, qs, ks):
        return None
    return "it is f(q)·f(k)·exp(a kernel), and exp has a power series with coefficients ≥ 0"


def _coefficients_psd(polynomial: Expr, qs: list[Expr], ks: list[Expr]) -> bool:
    """Monomials are independent functions: Σ B_αβ q^α k^β is a kernel exactly if B is ≥ 0."""
    table = kernel_table(polynomial, qs, ks)
    powers = sorted({p for key in table for p in key})
    matrix = sympy.zeros(len(powers), len(powers))
    for (alpha, beta), c in table.items():
        matrix[powers.index(alpha), powers.index(beta)] = c
    if not matrix.is_symmetric():
        return False
    if matrix.is_diagonal():
        return all(matrix[i, i] >= 0 for i in range(len(powers)))
    return len(powers) <= 12 and bool(matrix.is_positive_semidefinite)
