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
    """Ridge regression in the space of a kernel; give the penalty of the mean loss or of the sum.

    `mean_penalty` λ: minimises (1/N)Σ(f(xᵢ) − yᵢ)² + λ‖f‖²
    `sum_penalty` Nλ: minimises      Σ(f(xᵢ) − yᵢ)² + Nλ‖f‖²
    Both give f = Σαᵢk(xᵢ, ·), α = (K + Nλ·I)⁻¹y: what goes on the diagonal of K is `sum_penalty`
    (scikit-learn's `alpha`). With a finite map φ the same f is w·φ(x), w = (ΦᵀΦ + Nλ·I)⁻¹Φᵀy.

    `solver` "dual" works with K in O(n³), "primal" with Φ in O(n·m²); "auto" is primal where the
    kernel has a map of m ≤ n features. They agree to rounding.

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
                "KernelRidge needs one of mean_penalty (λ, beside the mean of the squares) and "
                "sum_penalty (Nλ, beside their sum, added to the diagonal of K)"
            )
        for name, value in (("mean_penalty", mean_penalty), ("sum_penalty", sum_penalty)):
            if value is not None:
                value = positive("KernelRidge", name, value)
            object.__setattr__(self, name, value)
        object.__setattr__(self, "kernel", get(kernel))
        object.__setattr__(self, "solver", solver)

    def fit(self, x: Any, y: Any) -> RidgeFit:
        """The fit to points x (n, d) and targets y (n,) or (n, targets)."""
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
    """A fitted ridge regression: `coefficients` α, and `weights` w where solved by features."""

    system: System
    coefficients: Floats
    weights: Floats | None

    @property
    def solver(self) -> Solver:
        """How it was solved: "dual" or "primal"."""
        return self.system.solver

    @property
    def sum_penalty(self) -> float:
        """Nλ, what stands on the diagonal."""
        return self.system.shift

    @property
    def mean_penalty(self) -> float:
        """λ."""
        return self.system.shift / len(self.system.points)

    def predict(self, x: Any) -> Floats:
        """f(x) at points (n, d): (n,) or (n, targets) as y was."""
        where = points("predict", "x", x)
        return self.system.predict(where, self.coefficients, self.weights)

    @property
    def functions(self) -> tuple[RKHSFunction, ...]:
        """f = Σαᵢk(xᵢ, ·) for each target."""
        columns = self.coefficients.reshape(len(self.coefficients), -1).T
        return tuple(RKHSFunction(self.system.kernel, self.system.points, a) for a in columns)

    @property
    def function(self) -> RKHSFunction:
        """f for the one target; `functions` where there are several."""
        if len(self.functions) > 1:
            raise ValueError(f"y had {len(self.functions)} targets; choose one of fit.functions")
        return self.functions[0]

    def __repr__(self) -> str:
        return f"<ridge regression with {self.system.kernel}, {self.solver}>"
