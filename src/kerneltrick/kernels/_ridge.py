"""Kernel ridge regression, by the Gram matrix or by features."""

from __future__ import annotations

import dataclasses
from typing import Any

from kerneltrick.kernels._base import Kernel
from kerneltrick.kernels._check import Floats, Solver, points, positive, targets
from kerneltrick.kernels._registry import KernelLike, get
from kerneltrick.kernels._rkhs import RKHSFunction
from kerneltrick.kernels._system import System


@dataclasses.dataclass(frozen=True, eq=False, init=False)
class KernelRidge:
    """Kernel ridge regression, with a penalty for the mean or for the sum of the squares.

    With `mean_penalty` λ it minimises (1/N)Σ(f(xᵢ) − yᵢ)² + λ‖f‖².
    With `sum_penalty` Nλ it minimises      Σ(f(xᵢ) − yᵢ)² + Nλ‖f‖².
    Both give f = Σαᵢk(xᵢ, ·) with α = (K + Nλ·I)⁻¹y. `sum_penalty` is added to the diagonal of K
    (`alpha` in scikit-learn). With a finite map φ, the same f is w·φ(x) with
    w = (ΦᵀΦ + Nλ·I)⁻¹Φᵀy.

    The solver "dual" uses K in O(n³), and "primal" uses Φ in O(n·m²). "auto" chooses primal if the
    kernel has a map with m ≤ n features. Both agree up to rounding.

    >>> import numpy as np
    >>> x = np.linspace(-1, 1, 30)[:, None]
    >>> fit = KernelRidge("polynomial:degree=2", mean_penalty=1e-6).fit(x, x[:, 0] ** 2)
    >>> fit.predict([[0.5]]).round(3), fit.solver, round(fit.sum_penalty, 9)
    (array([0.25]), 'primal', 3e-05)
    """

    kernel: Kernel
    mean_penalty: float | None
    sum_penalty: float | None
    solver: Solver

    def __init__(
        self,
        kernel: KernelLike,
        *,
        mean_penalty: float | None = None,
        sum_penalty: float | None = None,
        solver: Solver = "auto",
    ) -> None:
        if (mean_penalty is None) == (sum_penalty is None):
            raise ValueError(
                "KernelRidge needs either mean_penalty (λ, for the mean of the squares) or "
                "sum_penalty (Nλ, for their sum, added to the diagonal of K)"
            )
        for name, value in (("mean_penalty", mean_penalty), ("sum_penalty", sum_penalty)):
            if value is not None:
                value = positive("KernelRidge", name, value)
            object.__setattr__(self, name, value)
        object.__setattr__(self, "kernel", get(kernel))
        object.__setattr__(self, "solver", solver)

    def fit(self, x: Any, y: Any) -> RidgeFit:
        """Fit points x (n, d) and targets y (n,) or (n, targets)."""
        where = points("KernelRidge", "x", x, least=1)
        wanted = targets("KernelRidge", y, len(where))
        shift = self.sum_penalty
        if shift is None:
            assert self.mean_penalty is not None
            shift = len(where) * self.mean_penalty
        system = System.of("KernelRidge", self.kernel, where, shift, self.solver)
        return RidgeFit(system, *system.solve(wanted))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RidgeFit:
    """A fitted ridge regression with `coefficients` α, and `weights` w if features were used."""

    system: System
    coefficients: Floats
    weights: Floats | None

    @property
    def solver(self) -> Solver:
        """The solver that was used: "dual" or "primal"."""
        return self.system.solver

    @property
    def sum_penalty(self) -> float:
        """Nλ, which is added to the diagonal of K."""
        return self.system.shift

    @property
    def mean_penalty(self) -> float:
        """λ, the penalty for the mean of the squares."""
        return self.system.shift / len(self.system.points)

    def predict(self, x: Any) -> Floats:
        """f(x) at points (n, d), as (n,) or (n, targets), like y."""
        where = points("predict", "x", x)
        return self.system.predict(where, self.coefficients, self.weights)

    @property
    def functions(self) -> tuple[RKHSFunction, ...]:
        """f = Σαᵢk(xᵢ, ·) for each target."""
        columns = self.coefficients.reshape(len(self.coefficients), -1).T
        return tuple(RKHSFunction(self.system.kernel, self.system.points, a) for a in columns)

    @property
    def function(self) -> RKHSFunction:
        """f for a single target. Use `functions` if y has several."""
        if len(self.functions) > 1:
            raise ValueError(f"y had {len(self.functions)} targets; choose one of fit.functions")
        return self.functions[0]

    def __repr__(self) -> str:
        return f"<ridge regression with {self.system.kernel}, {self.solver}>"
