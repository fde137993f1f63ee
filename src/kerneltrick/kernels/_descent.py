"""Gradient descent in a reproducing kernel Hilbert space."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from kerneltrick._progress import Progress, ProgressReport
from kerneltrick.kernels._base import Kernel
from kerneltrick.kernels._check import (
    Floats,
    Solver,
    one_of,
    points,
    positive,
    signs,
    targets,
    whole,
)
from kerneltrick.kernels._losses import LOSSES, Loss, LossName
from kerneltrick.kernels._of_map import explicit
from kerneltrick.kernels._psd import gram
from kerneltrick.kernels._registry import KernelLike, get
from kerneltrick.kernels._rkhs import RKHSFunction, not_negative
from kerneltrick.kernels._system import choose

_WHO = "rkhs_descent"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Descent:
    """The path of a descent. Arrays have one entry for each recorded step."""

    function: RKHSFunction  # the last f
    steps: tuple[int, ...]
    coefficients: Floats  # (records, n): the coefficients α of each f
    norms: Floats  # ‖f‖
    losses: Floats  # (1/N)Σℓ(f(xᵢ), yᵢ)
    objectives: Floats  # the loss + λ‖f‖²
    gaps: Floats  # upper bounds on objective − minimum and on λ‖f − f*‖²
    solver: Solver
    stopped: str  # "steps", "tolerance" or "interrupted"

    def at(self, record: int) -> RKHSFunction:
        """The function at one recorded step."""
        f = self.function
        return RKHSFunction(f.kernel, f.points, self.coefficients[record])

    def __repr__(self) -> str:
        return (
            f"<descent of {self.steps[-1]} steps, stopped by {self.stopped}: objective "
            f"{self.objectives[-1]:.6g}, at most {self.gaps[-1]:.3g} above the minimum>"
        )


def rkhs_descent(
    kernel: KernelLike,
    x: Any,
    y: Any,
    *,
    mean_penalty: float,
    loss: LossName = "squared",
    steps: int = 1000,
    step_size: float | None = None,
    tolerance: float = 0.0,
    record_every: int = 1,
    solver: Solver = "auto",
    progress: ProgressReport | None = None,
) -> Descent:
    """Minimise J(f) = (1/N)Σℓ(f(xᵢ), yᵢ) + λ‖f‖² by functional gradient descent from f = 0.

    ∇J(f) = (1/N)Σℓ′(f(xᵢ), yᵢ)k(xᵢ, ·) + 2λf, so f never leaves the span of the k(xᵢ, ·):
    α ← (1 − 2ηλ)α − (η/N)ℓ′. λ is `mean_penalty`. `loss` is "squared", (f − y)², "logistic",
    log(1 + e^{−yf}), or "hinge", max(0, 1 − yf); the latter two need labels −1 and 1.

    The step η is `step_size`. By default it is 1/L, where L bounds the curvature of J. The hinge
    loss has no such bound and uses η_t = 1/(λ(t + 2)), which is the step of Frank–Wolfe in the dual
    of the SVM (Bach 2015). There α is feasible, so the gap is a duality gap; for smooth losses the
    gap is ‖∇J‖²/4λ. The descent stops after `steps` steps, when the gap is ≤ `tolerance`, or on
    Ctrl-C, and returns what it has. Every `record_every`-th step is recorded.

    A step costs O(n²) with the Gram matrix (`solver` "dual") and O(n·m) with features ("primal").

    >>> import numpy as np
    >>> x = np.array([[-1.0], [0.0], [1.0]])
    >>> run = rkhs_descent("rbf", x, [1, 0, 1], mean_penalty=0.01, tolerance=1e-10)
    >>> run.stopped, run.function(x).round(2)
    ('tolerance', array([0.93, 0.08, 0.93]))
    """
    one_of(_WHO, "loss", loss, tuple(LOSSES))
    penalty = positive(_WHO, "mean_penalty", mean_penalty)
    if not tolerance >= 0:
        raise ValueError(f"{_WHO} needs tolerance ≥ 0, not {tolerance!r}")
    chosen, where = get(kernel), points(_WHO, "x", x, least=1)
    n = len(where)
    labels = LOSSES[loss].labels
    wanted = signs(_WHO, y, n) if labels else targets(_WHO, y, n, columns=False)
    space = _FunctionSpace.of(chosen, where, solver)
    run = _DescentRun(
        space, wanted, LOSSES[loss], penalty, whole(_WHO, "record_every", record_every)
    )
    size = _step_size(space, LOSSES[loss], penalty, step_size)
    total = whole(_WHO, "steps", steps)
    meter = Progress(f"descent of the {loss} loss", total, progress)
    try:
        stopped = ""
        while not stopped:
            if run.look() <= tolerance:
                stopped = "tolerance"
            elif run.moves == total:
                stopped = "steps"
            else:
                run.move(1 / (penalty * (run.moves + 2)) if size is None else size)
                meter(run.moves)
    except KeyboardInterrupt:
        stopped = "interrupted"
        run.look()
    meter.close(run.moves)
    return run.result(stopped)


@dataclasses.dataclass(frozen=True, eq=False)
class _FunctionSpace:
    """Products with K, computed from K itself or from ΦΦᵀ."""

    kernel: Kernel
    points: Floats
    matrix: Floats | None
    features: Floats | None

    @staticmethod
    def of(kernel: Kernel, x: Floats, solver: Solver) -> _FunctionSpace:
        feature_map = choose(_WHO, kernel, x, solver)
        if feature_map is None:
            return _FunctionSpace(kernel, x, gram(kernel, x), None)
        return _FunctionSpace(kernel, x, None, explicit(feature_map, x))

    def image(self, alpha: Floats) -> tuple[Floats, float]:
        """Kα, the values of f = Σαᵢk(xᵢ, ·) at the points, and ‖f‖² = αᵀKα."""
        if self.features is not None:
            w = self.features.T @ alpha
            return self.features @ w, float(w @ w)
        assert self.matrix is not None
        values = self.matrix @ alpha
        return values, not_negative(self.kernel, float(alpha @ values), alpha, self.matrix)

    def largest_eigenvalue(self) -> float:
        """The largest eigenvalue of K by power iteration, which slightly underestimates it."""
        vector = np.random.default_rng(0).standard_normal(len(self.points))
        found = 0.0
        for _ in range(100):
            vector /= np.linalg.norm(vector)
            vector, _ = self.image(vector)
            before, found = found, float(np.linalg.norm(vector))
            if found <= before * (1 + 1e-4):
                break
        return found


def _step_size(
    space: _FunctionSpace, loss: Loss, penalty: float, given: float | None
) -> float | None:
    if loss.curvature is None:
        if given is not None:
            raise ValueError(
                f"{_WHO} chooses its own steps for the hinge loss, which has a kink; do not give "
                f"step_size"
            )
        return None
    curvature = loss.curvature * space.largest_eigenvalue() / len(space.points) + 2 * penalty
    if given is None:
        return 1 / curvature
    size = positive(_WHO, "step_size", given)
    if size >= 2 / curvature:
        raise ValueError(f"{_WHO} diverges with step_size {size:g}: it must be < {2 / curvature:g}")
    return size


class _DescentRun:
    """The current iterate and the records of earlier ones."""

    def __init__(
        self, space: _FunctionSpace, y: Floats, loss: Loss, penalty: float, record_every: int
    ) -> None:
        self.space, self.y, self.loss, self.penalty = space, y, loss, penalty
        self.record_every = record_every
        self.alpha = np.zeros(len(y))
        self.gradient = np.zeros(len(y))  # the coefficients of ∇J at alpha
        self.moves = 0
        self.state = (math.nan, math.nan, math.nan)  # ‖f‖, loss and gap at alpha
        self.records: list[tuple[int, Floats, tuple[float, float, float]]] = []

    def look(self) -> float:
        """Compute the gap and the gradient at the iterate; return the gap."""
        values, square = self.space.image(self.alpha)
        slopes = self.loss.derivative(values, self.y) / len(self.y)
        mean_loss = float(np.mean(self.loss.value(values, self.y)))
        if not math.isfinite(mean_loss + square):
            raise ValueError(f"{_WHO} diverged in step {self.moves}: use a smaller step_size")
        self.gradient = slopes + 2 * self.penalty * self.alpha
        if self.loss.curvature is None:
            # α = yᵢbᵢ/2λN with b ∈ [0, 1]: the dual objective is (1/N)Σbᵢ − λ‖f‖².
            dual = 2 * self.penalty * float(self.y @ self.alpha) - self.penalty * square
            gap = mean_loss + self.penalty * square - dual
        else:
            # J is 2λ-strongly convex: J(f) − min J ≤ ‖∇J(f)‖²/(2·2λ).
            gap = self.space.image(self.gradient)[1] / (4 * self.penalty)
        self.state = (math.sqrt(square), mean_loss, max(gap, 0.0))
        if self.moves % self.record_every == 0:
            self.record()
        return self.state[2]

    def move(self, size: float) -> None:
        self.alpha = self.alpha - size * self.gradient
        self.moves += 1

    def record(self) -> None:
        if not self.records or self.records[-1][0] != self.moves:
            self.records.append((self.moves, self.alpha, self.state))

    def result(self, stopped: str) -> Descent:
        self.record()
        norms, losses, gaps = np.array([state for *_, state in self.records]).T
        return Descent(
            function=RKHSFunction(self.space.kernel, self.space.points, self.alpha),
            steps=tuple(step for step, *_ in self.records),
            coefficients=np.array([alpha for _, alpha, _ in self.records]),
            norms=norms,
            losses=losses,
            objectives=losses + self.penalty * norms**2,
            gaps=gaps,
            solver="dual" if self.space.features is None else "primal",
            stopped=stopped,
        )
