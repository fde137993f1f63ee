"""How many features a map has, and how many a kernel needs."""

from __future__ import annotations

from typing import Any

from kerneltrick import costs
from kerneltrick.proofs._evaluate import Scope, scalar_value
from kerneltrick.proofs._monomials import kernel_table
from kerneltrick.proofs._symbolic import Kernel, KernelLike, Phi, PhiLike, symbols
from kerneltrick.proofs._sympy import Expr, real, sympy, write
from kerneltrick.proofs._syntax import ClaimError, names, place, read_expression
from kerneltrick.proofs._verdict import Verdict
from kerneltrick.proofs._witness import of_dot

WIDTHS = range(1, 9)
RANK_WIDTHS = range(1, 5)


def check_dimension(
    subject: PhiLike | KernelLike,
    claim: int | str,
    d: int | None = None,
    *,
    minimal: bool = False,
) -> Verdict:
    """Whether a map has as many features as claimed, such as "C(d+2, 2)"; or a kernel needs them.

    With `minimal` the subject is a polynomial kernel, and what counts is the rank of its
    coefficients of q^α·k^β: no exact real map has fewer features.

    >>> print(check_dimension("taylor:order=2", "d**2"))
    FALSE: taylor:order=2 has d**2 features
      it has d²/2 + 3·d/2 + 1
      counterexample: d = 1, features = 3, claimed = 1
    """
    text = str(claim)
    node = read_expression(text)
    for name in sorted(names(node) - {"d"}):
        at = place(node, name)
        raise ClaimError(text, at, f"a number of features depends on d only, not on {name}")
    variable = sympy.Symbol("d", integer=True, positive=True)
    claimed = scalar_value(node, Scope(text, {}, lambda _: variable))
    verb = "needs" if minimal else "has"
    widths = [d] if d is not None else list(RANK_WIDTHS if minimal else WIDTHS)
    counter = _Rank(subject) if minimal else _Count(subject)
    label = f"{counter.text} {verb} {text} features" + ("" if d is None else f" for d = {d}")
    counts = {w: counter(w) for w in widths}
    truth = counter.formula(variable, counts)
    shown = None if truth is None else write(truth)
    for width, count in counts.items():
        value = claimed.subs(variable, width)
        if value != count:
            if d is not None or shown is None:
                shown = f"{count} for d = {width}"
            point = {"d": width, "features": count, "claimed": str(value)}
            reason = f"it {verb} {'at least ' if minimal else ''}{shown}"
            return Verdict("false", label, reason, (), point, "counterexample")
    if truth is not None and sympy.expand_func(truth - claimed).expand() == 0:
        return Verdict("true", label, f"it {verb} {shown} for every d: the same polynomial")
    if d is not None:
        return Verdict("true", label, f"counted: {counts[d]}")
    reason = f"counted for d = {widths[0]} to {widths[-1]}: the numbers agree"
    if truth is None:
        return Verdict("undecided", label, reason + "; beyond that it is not proven")
    return Verdict("undecided", label, reason + f", but {shown} is another expression")


class _Count:
    """The number of features as they come."""

    def __init__(self, subject: Any) -> None:
        self.phi = Phi(subject)
        self.text = self.phi.text

    def __call__(self, d: int) -> int:
        if self.phi.map is not None:
            return self.phi.map.dim(d)
        xs, _, _ = symbols(d)
        return len(self.phi.symbolic(xs))

    def formula(self, d: Expr, counts: dict[int, int]) -> Expr | None:
        if self.phi.map is not None:
            known = costs.feature_cost(self.phi.map, 1)
            if known.counted:
                return _as_sympy(known.features, d)
            return None
        # With at most four indices, a list of features has a polynomial of degree ≤ 4 in d.
        return _interpolate(d, counts, 4) if self.phi.node is not None else None


class _Rank:
    """The least number of features of an exact map."""

    def __init__(self, subject: Any) -> None:
        self.kernel = Kernel(subject)
        self.text = self.kernel.text

    def __call__(self, d: int) -> int:
        _, qs, ks = symbols(d)
        expression = sympy.expand(self.kernel.symbolic(qs, ks))
        if not expression.is_polynomial(*qs, *ks):
            raise ValueError(f"{self.text} is not a polynomial: it needs infinitely many features")
        table = kernel_table(expression, qs, ks)
        rows = sorted({alpha for alpha, _ in table})
        columns = sorted({beta for _, beta in table})
        matrix = sympy.zeros(len(rows), len(columns))
        for (alpha, beta), c in table.items():
            matrix[rows.index(alpha), columns.index(beta)] = c
        return int(matrix.rank())

    def formula(self, d: Expr, counts: dict[int, int]) -> Expr | None:
        """Σ C(d+r−1, r) over the powers r of q·k that occur: their monomials are independent."""
        t = real("t")
        power_series = None if self.kernel.node is None else of_dot(
            self.kernel.node, self.text, t
        )  # fmt: skip
        if power_series is None or power_series.free_symbols - {t}:
            return None
        powers = [r for (r,), _ in sympy.Poly(power_series, t).terms()]
        total = sum((sympy.ff(d + r - 1, r) / sympy.factorial(r) for r in powers), sympy.Integer(0))
        return sympy.expand(sympy.expand_func(total))


def _interpolate(d: Expr, counts: dict[int, int], degree: int) -> Expr | None:
    points = list(counts.items())
    if len(points) <= degree + 1:
        return None
    curve = sympy.interpolate(points[: degree + 1], d)
    return curve if all(curve.subs(d, w) == m for w, m in points) else None


def _as_sympy(polynomial: costs.Polynomial, d: Expr) -> Expr:
    total = sympy.Integer(0)
    for key, c in polynomial.terms.items():
        term = sympy.Rational(c.numerator, c.denominator)
        for _, exponent in key:
            term *= d**exponent
        total += term
    return total
