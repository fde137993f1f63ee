"""Gaussian process regression, by the Gram matrix or by features."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from kerneltrick.kernels._base import Kernel
from kerneltrick.kernels._check import Floats, Solver, points, positive, targets
from kerneltrick.kernels._registry import KernelLike, get
from kerneltrick.kernels._system import System


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class GaussianProcess:
    """Gaussian process regression: y = f(x) + noise of variance σ², with f ~ GP(0, k).

    mean(x) = k(x, X)(K + σ²I)⁻¹y and var(x) = k(x, x) − k(x, X)(K + σ²I)⁻¹k(X, x) (Rasmussen &
    Williams 2006, Alg. 2.1). With m features everything costs O(n·m²): mean(x) = φ(x)·w,
    var(x) = σ²φ(x)ᵀA⁻¹φ(x) with A = ΦᵀΦ + σ²I_m, and log|K + σ²I_n| = log|A| + (n − m) log σ². The
    mean equals that of `KernelRidge` with sum_penalty = σ².

    >>> import numpy as np
    >>> x = np.linspace(-3, 3, 20)[:, None]
    >>> fit = GaussianProcess("rbf", noise_variance=1e-4).fit(x, np.sin(x[:, 0]))
    >>> mean, variance = fit.predict([[0.5], [4.0]])
    >>> mean.round(2), variance.round(2)
    (array([ 0.48, -0.48]), array([0.  , 0.17]))
    """

    kernel: Kernel
    noise_variance: float
    solver: Solver

    def __init__(
        self, kernel: KernelLike, *, noise_variance: float, solver: Solver = "auto"
    ) -> None:
        noise = positive("GaussianProcess", "noise_variance", noise_variance)
        object.__setattr__(self, "kernel", get(kernel))
        object.__setattr__(self, "noise_variance", noise)
        object.__setattr__(self, "solver", solver)

    def fit(self, x: Any, y: Any) -> ProcessFit:
        """Condition on points x (n, d) and targets y (n,)."""
        where = points("GaussianProcess", "x", x, least=1)
        wanted = targets("GaussianProcess", y, len(where), columns=False)
        system = System.of("GaussianProcess", self.kernel, where, self.noise_variance, self.solver)
        return ProcessFit(system, wanted, *system.solve(wanted))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ProcessFit:
    """A Gaussian process conditioned on data."""

    system: System
    targets: Floats
    coefficients: Floats
    weights: Floats | None

    @property
    def solver(self) -> Solver:
        """The solver that was used: "dual" or "primal"."""
        return self.system.solver

    def predict(self, x: Any) -> tuple[Floats, Floats]:
        """The mean and the variance of f, without noise, at points (n, d); each has shape (n,)."""
        where = points("predict", "x", x)
        mean = self.system.predict(where, self.coefficients, self.weights)
        return mean, self.system.variance(where)

    @property
    def log_marginal_likelihood(self) -> float:
        """log N(y; 0, K + σ²I) = −½yᵀ(K + σ²I)⁻¹y − ½log|K + σ²I| − (n/2) log 2π."""
        n = len(self.targets)
        return -0.5 * (self._misfit() + self.system.log_determinant() + n * math.log(2 * math.pi))

    def _misfit(self) -> float:
        """yᵀ(K + σ²I)⁻¹y."""
        if self.weights is None:
            return float(self.targets @ self.coefficients)
        # With r = y − Φw = σ²α it is ‖r‖²/σ² + ‖w‖², a sum of squares. yᵀα would cancel.
        noise = self.system.shift
        squares = noise * np.sum(self.coefficients**2) + np.sum(self.weights**2)
        return float(squares)

    def __repr__(self) -> str:
        return f"<Gaussian process with {self.system.kernel}, {self.solver}>"
