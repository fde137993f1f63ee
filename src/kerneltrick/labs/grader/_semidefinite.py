"""Positive semi-definite matrices: common mistakes, and vectors that refute them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.labs.grader._lab import Case, Mistake

Array = np.ndarray[Any, Any]


def symmetric(K: Array) -> bool:
    """Equal to its transpose but for rounding."""
    return bool(np.max(np.abs(K - K.T)) <= 1e-9 * np.max(np.abs(K)))


def spectrum(K: Array) -> tuple[float, float]:
    """The smallest eigenvalue, and the largest absolute one."""
    values = np.linalg.eigvalsh((K + K.T) / 2)
    return float(values[0]), float(np.max(np.abs(values)))


def without_tolerance(K: Array) -> bool:
    """No eigenvalue below 0 by a hair: refuses a singular matrix, unless its 0 is exact."""
    smallest, largest = spectrum(K)
    return symmetric(K) and (smallest > 1e-9 * largest or smallest == 0)


def definite(K: Array) -> bool:
    """Every eigenvalue above 0: refuses a singular matrix."""
    smallest, largest = spectrum(K)
    return symmetric(K) and smallest > 1e-9 * largest


def symmetry_mistakes(
    what: str, entry: str, judged_by: Callable[[Callable[[Array], Any]], Callable[..., Any]]
) -> tuple[Mistake, ...]:
    """Tests of symmetry with another tolerance; `judged_by` makes an answer of a tolerance."""
    absolute = (
        f"{what} has an absolute tolerance (np.allclose has atol=1e-8): small numbers all count as "
        f"equal. Compare with 1e-9 of the largest |{entry}|"
    )
    share = (
        f"{what} compares each entry with a share of itself: an entry that should be 0 but has a "
        f"rounding error then counts as different. Compare with 1e-9 of the largest |{entry}|"
    )
    return (
        Mistake(absolute, judged_by(lambda S: 1e-8 + 1e-5 * np.abs(S.T))),
        Mistake(absolute, judged_by(lambda S: 1e-9)),
        Mistake(absolute, judged_by(lambda S: 1e-9 + 1e-9 * np.abs(S.T))),
        *(Mistake(share, judged_by(_share(part))) for part in (1e-5, 1e-6, 1e-9)),
    )


def _share(share: float) -> Callable[[Array], Array]:
    return lambda S: share * np.abs(S.T)


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
