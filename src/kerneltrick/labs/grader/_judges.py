"""Judge answers of which several are right: feature maps, vectors and multipliers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.labs.grader._lab import Array, Case
from kerneltrick.labs.kernel_methods import svm_objectives

# --- feature maps of the quadratic kernel, by their inner products ------------------------------

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


# --- Taylor features ----------------------------------------------------------------------------


def taylor(t: Array) -> Array:
    return 1 + t + t * t / 2


WRONG_KERNELS: tuple[tuple[str, Callable[[Array, Array, Array, int], Array]], ...] = (
    (
        "your map gives 1 + t + t²: the second-order term of the series is t²/2, so its features "
        "need the factor 1/√2",
        lambda t, u, s, d: 1 + t + t * t,
    ),
    (
        "your map gives 1 + t + t²/4: φ(q) and φ(k) both have the ½, so use 1/√2 in each",
        lambda t, u, s, d: 1 + t + t * t / 4,
    ),
    (
        "your map gives 1 + t + ¼[t² + Σq²k²/d]: each product xᵢxⱼ (i < j) stands for two equal "
        "terms, so the cross terms lack √2",
        lambda t, u, s, d: 1 + t + (t * t + s) / 4,
    ),
    (
        "your map gives 1 + t + ½[t² + Σq²k²/d]: squares and cross terms have the same factor; "
        "with each product once, the squares need 1/√2 and the cross terms 1",
        lambda t, u, s, d: 1 + t + (t * t + s) / 2,
    ),
    (
        "your map gives 1 + t + Σq²k²/2d: it has only the squares xᵢ²; t² also needs the products "
        "xᵢxⱼ of different coordinates",
        lambda t, u, s, d: 1 + t + s / 2,
    ),
    (
        "your map gives 1 + t + Σq²k²/d: it has only the squares xᵢ², and those without 1/√2; t² "
        "also needs the products xᵢxⱼ of different coordinates",
        lambda t, u, s, d: 1 + t + s,
    ),
    (
        "your map gives t + t²/2: the constant feature 1 is missing",
        lambda t, u, s, d: t + t * t / 2,
    ),
    (
        "your map gives t²/2: the constant and the linear features are missing",
        lambda t, u, s, d: t * t / 2,
    ),
    ("your map gives 1 + t: the features of second order are missing", lambda t, u, s, d: 1 + t),
    (
        "your map gives (1 + t)² = 1 + 2t + t²: that is the quadratic kernel of lab 04, not the "
        "series of e^t",
        lambda t, u, s, d: (1 + t) ** 2,
    ),
    (
        "your map uses t = q·k, without the scale: divide x by d^(1/4) first",
        lambda t, u, s, d: taylor(u),
    ),
    (
        "your map uses t = q·k/d: φ(q) and φ(k) both divide x by √d. Divide by d^(1/4), the root "
        "of √d",
        lambda t, u, s, d: taylor(u / d),
    ),
    (
        "your map gives 1 + t + (q·k)²/2: the linear features are scaled, but the products are "
        "not; scale x before you multiply",
        lambda t, u, s, d: 1 + t + u * u / 2,
    ),
    (
        "your map gives 1 + t + (q·k)²/(2√d): a product xᵢxⱼ needs the scale of both factors, "
        "1/√d, but has d^(−1/4)",
        lambda t, u, s, d: 1 + t + u * u / (2 * np.sqrt(d)),
    ),
)


def judge_taylor(case: Case, answer: Any) -> str | None:
    """What is wrong with features, by their inner products."""
    x = np.asarray(case.arguments[0], dtype=np.float64)
    phi = np.asarray(answer)
    if phi.dtype.kind not in "fiu" or phi.shape[:-1] != x.shape[:-1]:
        n = " × ".join(map(str, x.shape[:-1]))
        return (
            f"φ(x) must be an array (..., n, m) of numbers: {n} rows of features for x of shape "
            f"{x.shape}, not {phi.dtype} of shape {phi.shape}"
        )
    phi, d = phi.astype(np.float64), x.shape[-1]
    found, u = phi @ phi.swapaxes(-1, -2), x @ x.swapaxes(-1, -2)
    t, s = u / np.sqrt(d), (x * x) @ (x * x).swapaxes(-1, -2) / d

    def is_gram(expected: Array) -> bool:
        tolerance = 1e-4 * np.max(np.abs(expected))
        return bool(np.allclose(found, expected, rtol=0, atol=tolerance))

    if is_gram(taylor(t)):
        return None
    for hint, kernel in WRONG_KERNELS:
        if is_gram(kernel(t, u, s, d)):
            return hint
    i, j = np.unravel_index(np.argmax(np.abs(found - taylor(t))), found.shape)[-2:]
    at = (0,) * (found.ndim - 2) + (i, j)
    return (
        f"φ(xᵢ)·φ(xⱼ) is {found[at]:.6g} for the rows i = {i}, j = {j} of x; with "
        f"t = xᵢ·xⱼ/√d = {t[at]:.6g} it must be 1 + t + t²/2 = {taylor(t)[at]:.6g}"
    )


# --- vectors that refute a Gram matrix -----------------------------------------------------------


def elu_gram() -> Array:
    """elu(x·y) + 1 on the points ±1, ±2: positive entries, and an eigenvalue −0.0114."""
    t = np.outer([-2.0, -1.0, 1.0, 2.0], [-2.0, -1.0, 1.0, 2.0])
    return np.where(t > 0, t + 1, np.exp(np.minimum(t, 0)))


def judge_direction(case: Case, answer: Any) -> str | None:
    """What is wrong with a vector that is to refute a matrix."""
    K = case.arguments[0]
    c = np.asarray(answer)
    if c.dtype.kind not in "biuf" or c.shape != (len(K),):
        came = f"shape {c.shape}" if c.dtype.kind in "biuf" else type(answer).__name__
        return f"c must be an array ({len(K)},), one number for each point, not {came}"
    c = c.astype(np.float64)
    length = float(np.linalg.norm(c))
    if not np.isfinite(length):
        return "c holds NaN or infinite numbers"
    if length == 0:
        return "c is the zero vector, for which cᵀKc is 0 whatever K is"
    values, vectors = np.linalg.eigh(K)
    unit = c / length
    form = float(unit @ K @ unit)
    if form < -1e-9 * np.max(np.abs(values)):
        return None
    if _parallel(unit, vectors[0]) or _parallel(unit, np.linalg.eig(K)[1][0]):
        return (
            "this is a row of the matrix of eigenvectors: np.linalg.eigh returns the eigenvectors "
            "as columns, vectors[:, 0]"
        )
    if _parallel(unit, values / np.linalg.norm(values)):
        return "these are the eigenvalues of K: return the eigenvector of a negative one"
    if _parallel(unit, vectors[:, -1]):
        return (
            "this is the eigenvector of the largest eigenvalue: np.linalg.eigh sorts in ascending "
            "order, so the smallest comes first"
        )
    return f"cᵀKc is {c @ K @ c:.4g}, not below 0"


def _parallel(a: Array, b: Array) -> bool:
    return bool(abs(abs(float(a @ b)) - 1) < 1e-6)


# --- support vector machines without offset, by their duality gap --------------------------------

GAP = 1e-3  # of the loss; the exercise asks for it
ROUNDING = 1e-5


def judge_machine(case: Case, answer: Any) -> str | None:
    """What is wrong with multipliers β."""
    K, y, C = case.arguments
    beta = np.asarray(answer)
    if beta.dtype.kind not in "biuf" or beta.shape != y.shape:
        came = f"shape {beta.shape}" if beta.dtype.kind in "biuf" else type(answer).__name__
        return f"β must be an array {y.shape}, one number for each point, not {came}"
    beta = beta.astype(np.float64)
    if not np.all(np.isfinite(beta)):
        return "β holds NaN or infinite numbers"
    if outside := _outside(beta, K, y, C):
        return outside
    beta = np.clip(beta, 0.0, C)
    if _solves(beta, K, y, C):
        return None
    if np.all(beta == 0):
        return "β is 0 everywhere: no point has been moved"
    for hint, matrix, labels, bound in (
        ("your β ignore the labels: the factor of k(xᵢ, xⱼ) is βᵢβⱼyᵢyⱼ", K, np.ones_like(y), C),
        ("your β lack the ½ before the double sum: they maximise Σβ − ΣΣ…", 2 * K, y, C),
        ("your β are clipped to C/n: each may go up to C", K, y, C / len(y)),
        ("your β are clipped to 1 whatever C is", K, y, min(1.0, C)),
    ):
        if np.all(beta <= bound * (1 + ROUNDING)) and _solves(beta, matrix, labels, bound):
            return hint
    if abs(float(y @ beta)) <= 1e-3 * float(np.sum(beta)):
        return (
            "your β satisfy Σyᵢβᵢ = 0: that is the condition of a machine with an offset b. This "
            "machine has none, and the condition makes β worse"
        )
    return _unfinished(beta, K, y, C)


def _outside(beta: Array, K: Array, y: Array, C: float) -> str | None:
    if np.min(beta) < -ROUNDING * C:
        size = np.abs(beta)
        if np.all(y * beta >= -ROUNDING * C) and _solves(np.clip(size, 0.0, C), K, y, C):
            return "these are the coefficients αᵢ = yᵢβᵢ of f: return β, which is never below 0"
        return f"β goes down to {np.min(beta):.3g}: clip it to [0, C], below too"
    if np.max(beta) > C * (1 + ROUNDING):
        return (
            f"β goes up to {np.max(beta):.3g} with C = {C:g}: clip it to [0, C], above too "
            f"(without C it is the machine with a hard margin)"
        )
    return None


def _solves(beta: Array, K: Array, y: Array, C: float) -> bool:
    dual, loss = svm_objectives(beta, K, y, C)
    return loss - dual <= GAP * loss * (1 + 1e-2)


def _unfinished(beta: Array, K: Array, y: Array, C: float) -> str:
    """The point whose β gains most by moving, and the gap."""
    slope = 1 - y * (K @ (y * beta))
    free = np.where(slope > 0, beta < C, beta > 0)
    i = int(np.argmax(np.abs(slope) * free))
    dual, loss = svm_objectives(beta, K, y, C)
    where = "0" if beta[i] == 0 else "C" if beta[i] == C else f"{beta[i]:.3g}"
    better = "a larger" if slope[i] > 0 else "a smaller"
    return (
        f"β is not optimal: the duality gap is {(loss - dual) / loss:.2g} of the loss, and must be "
        f"at most {GAP:g}. Point {i} has β = {where} and y·f = {1 - slope[i]:.3g}: {better} β gains"
    )
