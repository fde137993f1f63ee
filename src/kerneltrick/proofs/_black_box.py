"""Compare functions that only work on numbers. Their values can refute a claim, never prove it."""

from __future__ import annotations

import numpy as np

from kerneltrick.proofs._symbolic import Floats, Kernel, NotSymbolicError, Phi
from kerneltrick.proofs._verdict import Counterexample, Verdict

POINTS = 400
ROUNDING = 1e-3  # larger relative differences are not rounding, not even in float32
RETURNED = "the function is judged by the floating-point numbers it returned"


def compare_numbers(claim: str, phi: Phi, kernel: Kernel, d: int, why: str) -> Verdict:
    """Compare φ(q)·φ(k) with the kernel at points of several sizes: refuted or undecided."""
    parameters = sorted(phi.parameters | kernel.parameters)
    if parameters:
        missing = f"{why}, and {', '.join(parameters)} has no value"
        return Verdict.undecided(claim, missing)
    rng = np.random.default_rng([d, *b"points"])
    sizes = np.repeat([0.1, 0.5, 1.0, 2.0], POINTS // 4)[:, None]
    q, k = (rng.standard_normal((POINTS, d)) * sizes for _ in range(2))
    q[:16], k[:16] = rng.integers(-2, 3, (2, 16, d))  # small numbers make the best counterexamples
    try:
        found, wanted, error = _sides(phi, kernel, q, k)
    except NotSymbolicError as problem:
        return Verdict.undecided(claim, str(problem))
    facts = {"d": d, "points": POINTS, "largest_relative_error": float(error.max())}
    wrong = np.flatnonzero(error > ROUNDING)
    if not len(wrong):
        missing = (
            f"{why}; the sides agree to {error.max():.0e} at {POINTS} points (d = {d}), which is "
            "not a proof"
        )
        return Verdict.undecided(claim, missing, (), facts, "measurement")
    i = int(wrong[0])
    values = {
        "q": q[i].tolist(),
        "k": k[i].tolist(),
        "φ(q)·φ(k)": float(found[i]),
        "kernel": float(wanted[i]),
    }
    example = Counterexample(
        f"{why}; its numbers differ from the kernel at {len(wrong)} of {POINTS} points (d = {d})",
        values,
        lambda: bool(_sides(phi, kernel, q[i : i + 1], k[i : i + 1])[2][0] > ROUNDING),
        (RETURNED,),
    )
    return Verdict.false(claim, example, (), facts)


def _sides(phi: Phi, kernel: Kernel, q: Floats, k: Floats) -> tuple[Floats, Floats, Floats]:
    """Both sides and their relative difference, which is 0 where a side is not finite."""
    with np.errstate(all="ignore"):
        features_q, features_k = phi.numeric(q), phi.numeric(k)
        found = (features_q * features_k).sum(axis=1)
        wanted = kernel.numeric(q, k)
        scale = np.maximum(np.abs(features_q * features_k).sum(axis=1), np.abs(wanted))
        error = np.abs(found - wanted) / np.where(scale > 0, scale, 1)
    return found, wanted, np.where(np.isfinite(error), error, 0.0)
