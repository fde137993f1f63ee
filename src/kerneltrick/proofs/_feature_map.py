"""Does φ(q)·φ(k) equal the kernel?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from kerneltrick.proofs._all_dimensions import holds_in_every_dimension
from kerneltrick.proofs._monomials import (
    Wrong,
    counterexample,
    explain,
    feature_table,
    is_zero,
    kernel_table,
    wrong_monomials,
)
from kerneltrick.proofs._random import check_random_map
from kerneltrick.proofs._symbolic import (
    Kernel,
    KernelLike,
    NotSymbolicError,
    Phi,
    PhiLike,
    symbols,
)
from kerneltrick.proofs._sympy import Expr, real, sympy, write
from kerneltrick.proofs._syntax import largest_index
from kerneltrick.proofs._verdict import Verdict

DIMENSIONS = (1, 2, 3, 4)
SHOWN = 8  # wrong monomials listed
POINTS = 400  # of a numeric comparison
SERIES = 6  # orders of a series comparison


def check_feature_map(
    phi: PhiLike,
    kernel: KernelLike | None = None,
    d: int | Sequence[int] | None = None,
    *,
    some: Sequence[str] = (),
) -> Verdict:
    """Whether φ(q)·φ(k) = k(q, k), with every wrong monomial and what would mend it.

    φ is a text `[1, √2*x, x[i]*x[j] for i<=j]`, a feature map or its name, or a function; the
    kernel a text `(q·k + 1)**2`, a map or a function (None: the map's own). A function is run on
    symbols; polynomials are compared exactly in every dimension of `d` (1 to 4 unless given), other
    functions by simplification, their series and numbers, and random maps by their mean and
    variance over seeds. `some` names parameters of φ that may be chosen.

    >>> print(check_feature_map("[x[i]*x[j] for i<=j]", "(q·k)**2", d=2))
    FALSE: [x[i]*x[j] for i<=j] gives (q·k)**2
      one monomial is wrong (d = 2)
      - x₁·x₂: kernel has 2, φ·φ has 1 → scale this feature by √2
      counterexample: q = (1, 2), k = (3, 4), φ(q)·φ(k) = 97, kernel = 121
    """
    wanted_map = Phi(phi)
    if kernel is None:
        if wanted_map.map is None:
            raise ValueError("a feature map that is not one of kerneltrick's needs a kernel")
        kernel = wanted_map.map
    wanted = Kernel(kernel)
    own = kernel is wanted_map.map
    claim = f"{wanted_map.text} gives {'its kernel' if own else wanted.text}"
    if some:
        claim += f" for some {', '.join(some)}"
    if wanted_map.random:
        return check_random_map(claim, phi, wanted, _dimensions(d, 1)[-1])
    dimensions = _dimensions(d, largest_index(wanted_map.node, wanted.node))
    judged = Verdict("undecided", claim, "no dimension was looked at")
    for width in dimensions:
        judged = _judge(claim, wanted_map, wanted, width, tuple(some))
        if judged.status != "true":
            return judged
    return _for_all(judged, wanted_map, wanted, dimensions)


def _dimensions(d: int | Sequence[int] | None, least: int) -> tuple[int, ...]:
    usual = tuple(x for x in DIMENSIONS if x >= least) or (least,)
    found = usual if d is None else (d,) if isinstance(d, int) else tuple(d)
    if not found or any(isinstance(x, bool) or not 1 <= x <= 12 for x in found):
        raise ValueError(f"d must be from 1 to 12, not {d!r}")
    return found


def _judge(claim: str, phi: Phi, kernel: Kernel, d: int, some: tuple[str, ...]) -> Verdict:
    xs, qs, ks = symbols(d)
    try:
        features = phi.symbolic(xs)
        expression = kernel.symbolic(qs, ks)
    except NotSymbolicError as error:
        return _numeric(claim, phi, kernel, d, f"{error}; so numbers decide")
    polynomial = all(f.is_polynomial(*xs) for f in features)
    if not polynomial or not sympy.expand(expression).is_polynomial(*qs, *ks):
        return _transcendental(claim, phi, kernel, d, features, expression)
    found, uses = feature_table(features, xs)
    wrong = wrong_monomials(kernel_table(expression, qs, ks), found, uses)
    facts = {"d": d, "features": len(features)}
    if not wrong:
        rounded = any(f.has(sympy.Float) for f in features) or expression.has(sympy.Float)
        reason = f"for d = {d} all {len(found)} coefficients of q^α·k^β agree"
        if rounded:
            reason += " to 1e-9 (coefficients that are no simple numbers)"
        basis = "measurement" if rounded else "proof"
        return Verdict("true", claim, reason, basis=basis, facts=facts)
    if some:
        return _solve(claim, wrong, some, d, facts)
    return _refute(claim, wrong, features, expression, d, facts)


def _refute(
    claim: str, wrong: list[Wrong], features: list[Expr], kernel: Expr, d: int, facts: Any
) -> Verdict:
    xs, qs, ks = symbols(d)
    details = [explain(w, _subscripts(xs)) for w in wrong[:SHOWN]]
    if len(wrong) > SHOWN:
        details.append(f"and {len(wrong) - SHOWN} more")
    product = _product(features, xs, qs, ks)
    point = counterexample(product - kernel, {"q": qs, "k": ks})
    values = {
        **dict(zip(qs, point["q"], strict=True)),
        **dict(zip(ks, point["k"], strict=True)),
        **{real(name): value for name, value in point.items() if name not in ("q", "k")},
    }
    both = {"φ(q)·φ(k)": product, "kernel": kernel}
    point |= {name: _number(x.subs(values)) for name, x in both.items()}
    count = "one monomial is" if len(wrong) == 1 else f"{len(wrong)} monomials are"
    return Verdict(
        "false",
        claim,
        f"{count} wrong (d = {d})",
        tuple(details),
        point,
        "counterexample",
        {**facts, "wrong": len(wrong)},
    )


def _solve(claim: str, wrong: list[Wrong], some: tuple[str, ...], d: int, facts: Any) -> Verdict:
    """Whether parameters can be chosen so that every wrong coefficient becomes right."""
    xs, _, _ = symbols(d)
    unknowns = [real(name) for name in some]
    equations = [sympy.expand(w.found - w.kernel) for w in wrong]
    needs = [
        f"{explain(w, _subscripts(xs)).partition(':')[0]} needs "
        f"{write(sympy.expand(w.found))} = {write(w.kernel)}"
        for w in wrong[:SHOWN]
    ]
    solutions = sympy.solve(equations, unknowns, dict=True)
    for solution in solutions:
        values = [solution.get(x, sympy.Integer(1)) for x in unknowns]
        if all(v.is_real for v in values):
            chosen = ", ".join(f"{x} = {write(v)}" for x, v in zip(some, values, strict=True))
            return Verdict("true", claim, f"for d = {d}: {chosen}", tuple(needs), facts=facts)
    names = ", ".join(some)
    return Verdict(
        "false", claim, f"for d = {d} no real {names} meets all conditions", tuple(needs),
        facts=facts,
    )  # fmt: skip


def _for_all(judged: Verdict, phi: Phi, kernel: Kernel, dimensions: tuple[int, ...]) -> Verdict:
    if len(dimensions) == 1 or judged.basis == "measurement":
        return judged
    low, high = dimensions[0], dimensions[-1]
    reason = f"φ(q)·φ(k) and the kernel are the same expression for d = {low} to {high}"
    left, right = phi.node, kernel.node
    if low == 1 and left and right and holds_in_every_dimension(left, right, high):
        reason += f"; no monomial has more than {high} coordinates, so it holds for every d"
    return Verdict("true", judged.claim, reason, judged.details, facts=judged.facts)


def _transcendental(
    claim: str, phi: Phi, kernel: Kernel, d: int, features: list[Expr], expression: Expr
) -> Verdict:
    """Functions that are not polynomials: numbers first, then simplification, then the series."""
    xs, qs, ks = symbols(d)
    numeric = _numeric(claim, phi, kernel, d, "not polynomials")
    difference = _product(features, xs, qs, ks) - expression
    if numeric.status != "true":
        refuted = numeric.status == "false"
        return _with_series(numeric, difference, [*qs, *ks]) if refuted else numeric
    if is_zero(sympy.simplify(sympy.powsimp(sympy.expand(difference)))):
        return Verdict("true", claim, f"for d = {d} the difference simplifies to 0",
                       facts=numeric.facts)  # fmt: skip
    return numeric


def _with_series(verdict: Verdict, difference: Expr, variables: list[Expr]) -> Verdict:
    """The refutation, with the first order at which the series of the two sides part."""
    t = sympy.Symbol("t")
    try:
        scaled = difference.subs({x: t * x for x in variables}, simultaneous=True)
        series = sympy.series(scaled, t, 0, SERIES + 1).removeO()
        orders = [r for r in range(SERIES + 1) if sympy.expand(series).coeff(t, r) != 0]
    except Exception:  # no series at 0: the numbers stand alone
        return verdict
    if not orders:
        return verdict
    part = sympy.expand(series).coeff(t, orders[0])
    text = write(sympy.factor(part))
    line = f"the series in q and k part at degree {orders[0]}: φ·φ − kernel = {text[:200]} + …"
    return Verdict(verdict.status, verdict.claim, verdict.reason, (line,), verdict.counterexample,
                   verdict.basis, verdict.facts)  # fmt: skip


def _numeric(claim: str, phi: Phi, kernel: Kernel, d: int, why: str) -> Verdict:
    """Both sides at random points of several sizes, in float64."""
    parameters = sorted(phi.parameters | kernel.parameters)
    if parameters:
        return Verdict("undecided", claim, f"{why}, and {', '.join(parameters)} has no value")
    rng = np.random.default_rng([d, *b"points"])
    sizes = np.repeat([0.1, 0.5, 1.0, 2.0], POINTS // 4)[:, None]
    q, k = (rng.standard_normal((POINTS, d)) * sizes for _ in range(2))
    q[:16], k[:16] = rng.integers(-2, 3, (2, 16, d))  # a counterexample is best in small numbers
    with np.errstate(all="ignore"):
        features_q, features_k = phi.numeric(q), phi.numeric(k)
        found = (features_q * features_k).sum(axis=1)
        wanted = kernel.numeric(q, k)
    scale = np.maximum(np.abs(features_q * features_k).sum(axis=1), np.abs(wanted))
    usable = np.isfinite(found) & np.isfinite(wanted)
    if not usable.all():
        return Verdict(
            "undecided",
            claim,
            f"{why}; {POINTS - int(usable.sum())} of {POINTS} points give no finite number",
        )
    error = np.abs(found - wanted) / np.where(scale > 0, scale, 1)
    worst = int(error.argmax())
    facts = {"d": d, "features": int(features_q.shape[1]), "points": POINTS,
             "largest_relative_error": float(error[worst])}  # fmt: skip
    if error[worst] <= 1e-9:
        return Verdict(
            "true",
            claim,
            f"{why}: at {POINTS} random points (d = {d}) the sides agree to "
            f"{max(error[worst], 1e-16):.0e}; not a proof: with 95 % confidence they agree so on "
            f"all but {300 / POINTS:.2f} % of such points",
            basis="measurement",
            facts=facts,
        )
    if error[worst] < 1e-6:
        return Verdict(
            "undecided",
            claim,
            f"{why}; the largest relative difference is {error[worst]:.0e}: rounding, or nearly "
            "right",
            facts=facts,
        )
    simple = int(np.flatnonzero(error > 1e-6)[0])
    point = {
        "q": q[simple].tolist(),
        "k": k[simple].tolist(),
        "φ(q)·φ(k)": float(found[simple]),
        "kernel": float(wanted[simple]),
    }
    wrong = int((error > 1e-6).sum())
    reason = f"{why}: the sides differ at {wrong} of {POINTS} random points (d = {d})"
    return Verdict("false", claim, reason, (), point, "counterexample", facts)


def _product(features: list[Expr], xs: list[Expr], qs: list[Expr], ks: list[Expr]) -> Expr:
    at_q = dict(zip(xs, qs, strict=True))
    at_k = dict(zip(xs, ks, strict=True))
    return sum((f.subs(at_q) * f.subs(at_k) for f in features), sympy.Integer(0))


def _subscripts(xs: list[Expr]) -> list[str]:
    return [str(x)[1:] for x in xs]


def _number(x: Expr) -> Any:
    x = sympy.nsimplify(sympy.expand(x))
    return int(x) if x.is_Integer else str(x) if x.is_Rational else float(x)
