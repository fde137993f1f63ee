"""Judge feature maps of the quadratic kernel by their inner products, in any order."""

from __future__ import annotations

from typing import Any

import numpy as np

from kerneltrick.labs.grader._lab import Case

Array = np.ndarray[Any, Any]
ROOT2 = float(np.sqrt(2.0))

# The coefficients of Σqᵢ²kᵢ², Σ_{i<j} qᵢqⱼkᵢkⱼ, q·k and 1 in the two kernels.
SQUARE = (1.0, 2.0, 0.0, 0.0)
QUADRATIC = (1.0, 2.0, 2.0, 1.0)
TERMS = ("the squares", "the cross terms", "the linear terms", "the constant 1")


def judge_square(case: Case, answer: Any) -> str | None:
    """What is wrong with a map of (q·k)²."""
    d = case.arguments[0].shape[1]
    return _judge_map(case.arguments[0], answer, "(q·k)²", SQUARE, d * (d + 1) // 2)


def judge_quadratic(case: Case, answer: Any) -> str | None:
    """What is wrong with a map of (q·k + 1)²."""
    d = case.arguments[0].shape[1]
    return _judge_map(case.arguments[0], answer, "(q·k + 1)²", QUADRATIC, (d + 1) * (d + 2) // 2)


def _judge_map(x: Array, answer: Any, kernel: str, wanted: tuple[float, ...], m: int) -> str | None:
    """What is wrong with features φ(x): by their inner products, in any order of features."""
    n, d = x.shape
    phi = np.asarray(answer)
    if phi.dtype.kind not in "biuf" or phi.ndim != 2 or len(phi) != n:
        came = f"shape {phi.shape}" if phi.dtype.kind in "biuf" else type(answer).__name__
        return f"φ(x) must be an array ({n}, {m}), one row for each of the {n} points, not {came}"
    phi = phi.astype(np.float64)
    if not np.all(np.isfinite(phi)):
        return "φ(x) holds NaN or infinite numbers"
    t = x @ x.T
    squares = x**2 @ (x**2).T
    terms = (squares, (t * t - squares) / 2, t, np.ones((n, n)))
    truth = np.asarray(sum(c * term for c, term in zip(wanted, terms, strict=True)))
    near = 1e-4 * np.max(np.abs(truth))
    found = phi @ phi.T
    if np.max(np.abs(found - truth)) <= near:
        return None if phi.shape[1] == m else _too_many(phi.shape[1], d, m, kernel, wanted)
    if phi.shape[1] == n and np.max(np.abs(phi - truth)) <= near:
        return f"this is the Gram matrix of {kernel}, not features: φ sees one x at a time"
    used = [i for i in range(4) if i != 1 or d > 1]  # one coordinate has no cross terms
    columns = np.stack([terms[i].ravel() for i in used], axis=1)
    solution = np.linalg.lstsq(columns, found.ravel(), rcond=None)[0]
    if np.max(np.abs(columns @ solution - found.ravel())) > 1e-4 * np.max(np.abs(found)):
        i, j = divmod(int(np.argmax(np.abs(found - truth))), n)
        return (
            f"φ(q)·φ(k) is not {kernel}: for q = {_listed(x[i])}, k = {_listed(x[j])} it is "
            f"{found[i, j]:.4g}, and {kernel} is {truth[i, j]:.4g}"
        )
    got = [2.0] * 4
    for i, value in zip(used, solution, strict=True):
        got[i] = round(float(value), 3) + 0.0
    wrong = [_wrong_term(i, got[i], wanted[i]) for i in used if abs(got[i] - wanted[i]) > 1e-2]
    return f"your map gives {_formula(got)}: " + "; ".join(wrong)


def _wrong_term(term: int, got: float, wanted: float) -> str:
    name = TERMS[term]
    one = term == 3
    if got == 0:
        return f"{name} {'is' if one else 'are'} missing"
    if wanted == 0:
        return f"{name} {'does' if one else 'do'} not belong to (q·k)²"
    if wanted == 2 and got == 1:
        return f"{name} lack √2"
    if wanted == 2 and got == 4:
        return f"{name} carry a factor 2, or stand there twice with √2: √2, once, is right"
    if wanted == 1 and got == 2:
        return f"{name} {'carries' if one else 'carry'} √2, and should not"
    return (
        f"{name} {'counts' if one else 'count'} {got:g} times in the product, {wanted:g} is right"
    )


def _formula(got: list[float]) -> str:
    """Σ of coefficients and terms as one writes it: ½[(q·k)²+Σq²k²] + 2q·k + 1."""
    squares, cross, linear, constant = got
    parts = []
    if squares == cross != 0:
        parts.append(f"{'½' if cross == 1 else _times(cross / 2)}[(q·k)²+Σq²k²]")
    else:
        if cross:
            parts.append(f"{_times(cross / 2)}(q·k)²")
        if rest := squares - cross / 2:
            parts.append(f"{_times(rest)}Σq²k²")
    if linear:
        parts.append(f"{_times(linear)}q·k")
    if constant:
        parts.append(f"{constant:g}")
    return " + ".join(parts).replace("+ -", "− ") or "0"


def _times(factor: float) -> str:
    return {1.0: "", -1.0: "-"}.get(factor, f"{factor:g}")


def _too_many(got: int, d: int, m: int, kernel: str, wanted: tuple[float, ...]) -> str:
    if got == m + d * (d - 1) // 2:
        count = "d² + d + 1" if wanted[3] else "d²"
        return (
            f"m = {count} = {got}: the cross terms are there twice, as xᵢxⱼ and as xⱼxᵢ. "
            f"φ(q)·φ(k) is right, but {m} features do: each pair once, i < j, with √2"
        )
    return f"φ(q)·φ(k) is {kernel}, but φ has {got} features; it must have m = {m} for d = {d}"


def _listed(x: Array) -> str:
    return f"({', '.join(f'{value:.3g}' for value in x)})"


def features(
    x: Array,
    constant: float = 1.0,
    linear: float = ROOT2,
    square: float = 1.0,
    cross: float = ROOT2,
) -> Array:
    """The features of (q·k + 1)² with other factors."""
    i, j = np.triu_indices(x.shape[1], 1)
    parts = [np.full((len(x), 1), constant), linear * x, square * x**2, cross * x[:, i] * x[:, j]]
    return np.concatenate(parts, axis=1)
