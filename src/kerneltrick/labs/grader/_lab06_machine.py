"""Judge support vector machines without offset by their duality gap, whatever the method."""

from __future__ import annotations

from typing import Any

import numpy as np

from kerneltrick.labs.grader._lab import Case
from kerneltrick.labs.kernel_methods import svm_objectives

Array = np.ndarray[Any, Any]
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
