"""Compare regression by the Gram matrix and by features: accuracy and speed."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kerneltrick._text import shown
from kerneltrick.kernels._check import Floats, Solver, positive, whole
from kerneltrick.kernels._gaussian_process import GaussianProcess
from kerneltrick.kernels._registry import KernelLike, get

_SECONDS = 0.2
_SOLVERS: tuple[Solver, Solver] = ("dual", "primal")


@dataclasses.dataclass(frozen=True)
class SolverTime:
    """The times of both solvers for n points and m features."""

    n: int
    d: int
    m: int
    dual_ms: float
    primal_ms: float
    difference: float  # largest relative difference of means, variances and log likelihood

    @property
    def winner(self) -> str:
        return "primal" if self.primal_ms < self.dual_ms else "dual"


@dataclasses.dataclass(frozen=True)
class SolverComparison:
    """The times of both solvers for several n. `table` is a Markdown table."""

    kernel: str
    rows: tuple[SolverTime, ...]

    @property
    def table(self) -> str:
        lines = [
            f"| {self.kernel}: n | m | n×n, ms | features, ms | faster | largest difference |",
            "|---:|---:|---:|---:|---|---:|",
        ]
        for row in self.rows:
            times = sorted((row.dual_ms, row.primal_ms))
            name = "features" if row.winner == "primal" else "n×n"
            lines.append(
                f"| {row.n} | {row.m} | {shown(row.dual_ms)} | {shown(row.primal_ms)} | "
                f"{name} ×{times[1] / times[0]:.1f} | {row.difference:.0e} |"
            )
        return "\n".join(lines)


def compare_solvers(
    kernel: KernelLike = "polynomial:degree=2",
    lengths: Sequence[int] = (64, 128, 256, 512, 1024, 2048),
    *,
    d: int = 16,
    noise_variance: float = 0.1,
    seed: int = 0,
    milliseconds: Callable[[Callable[[], Any]], float] | None = None,
) -> SolverComparison:
    """Compare Gaussian process regression by K in O(n³) and by Φ in O(n·m²) on the same data.

    The time includes the fit, its likelihood, and mean and variance at 64 new points. It is the
    best of several runs, or the result of `milliseconds(run)` if that is given.

    >>> result = compare_solvers(lengths=(20, 40), d=3)
    >>> [(row.n, row.m, row.difference < 1e-9) for row in result.rows]
    [(20, 10, True), (40, 10, True)]
    """
    chosen = get(kernel)
    positive("compare_solvers", "noise_variance", noise_variance)
    feature_map = chosen.feature_map
    if feature_map is None:
        raise ValueError(
            f"{chosen} has no finite feature map; try MapKernel(kernel.random_features(256))"
        )
    dual, primal = (
        GaussianProcess(chosen, noise_variance=noise_variance, solver=solver) for solver in _SOLVERS
    )
    rows = []
    for n in lengths:
        data = _data(whole("compare_solvers", "n", n), whole("compare_solvers", "d", d), seed)
        by_gram, by_features = (functools.partial(_answer, p, *data) for p in (dual, primal))
        difference = _difference(by_gram(), by_features())
        times = (milliseconds or _best)(by_gram), (milliseconds or _best)(by_features)
        rows.append(SolverTime(n, d, feature_map.dim(d), *times, difference))
    return SolverComparison(str(chosen), tuple(rows))


def _answer(process: GaussianProcess, x: Floats, y: Floats, new: Floats) -> Floats:
    fit = process.fit(x, y)
    mean, variance = fit.predict(new)
    return np.concatenate([mean, variance, [fit.log_marginal_likelihood]])


def _data(n: int, d: int, seed: int) -> tuple[Floats, Floats, Floats]:
    rng = np.random.default_rng([seed, n, d])
    x, new = rng.standard_normal((n, d)) / math.sqrt(d), rng.standard_normal((64, d)) / math.sqrt(d)
    y = np.sin(3 * x[:, 0]) + x[:, -1] ** 2 + 0.1 * rng.standard_normal(n)
    return x, y, new


def _difference(a: Floats, b: Floats) -> float:
    """The largest relative difference of the 64 means, the 64 variances and the likelihood."""
    parts = (slice(0, 64), slice(64, 128), slice(128, None))
    return max(float(np.abs(a[p] - b[p]).max() / np.abs(a[p]).max()) for p in parts)


def _best(run: Callable[[], Any]) -> float:
    best, start, runs = math.inf, time.perf_counter(), 0
    while runs < 3 or time.perf_counter() - start < _SECONDS:
        before = time.perf_counter()
        run()
        best, runs = min(best, time.perf_counter() - before), runs + 1
    return 1e3 * best
