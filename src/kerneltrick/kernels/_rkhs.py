"""Functions in a reproducing kernel Hilbert space."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from kerneltrick.kernels._base import Kernel
from kerneltrick.kernels._check import Floats, coefficients, points
from kerneltrick.kernels._of_map import explicit
from kerneltrick.kernels._psd import gram
from kerneltrick.kernels._registry import KernelLike, get

_EPS = float(np.finfo(np.float64).eps)


@dataclasses.dataclass(frozen=True, eq=False, init=False, repr=False)
class RKHSFunction:
    """f = Σᵢ αᵢ k(xᵢ, ·), with ⟨f, g⟩ = αᵀKβ and the reproducing property f(x) = ⟨f, k(x, ·)⟩.

    It has `points` (n, d) and `coefficients` α (n,). Functions can be added, subtracted and scaled.

    >>> f = RKHSFunction("linear", [[1, 0], [0, 2]], [3, 1])
    >>> f([[5, 7]]), f.squared_norm
    (array([29.]), 13.0)
    >>> f.inner(RKHSFunction.at("linear", [5, 7]))
    29.0
    """

    kernel: Kernel
    points: Floats
    coefficients: Floats

    def __init__(self, kernel: KernelLike, x: Any, alpha: Any) -> None:
        where = points("RKHSFunction", "x", x, least=1)
        object.__setattr__(self, "kernel", get(kernel))
        object.__setattr__(self, "points", where)
        object.__setattr__(self, "coefficients", coefficients("RKHSFunction", alpha, len(where)))

    @staticmethod
    def at(kernel: KernelLike, x: Any) -> RKHSFunction:
        """k(x, ·) for one point x (d,)."""
        return RKHSFunction(kernel, np.asarray(x)[None], np.ones(1))

    def __call__(self, x: Any) -> Floats:
        """f(x) at points (n, d), as (n,)."""
        return self.kernel(x, self.points) @ self.coefficients

    def inner(self, other: RKHSFunction) -> float:
        """⟨f, g⟩ = αᵀKβ, where K is the kernel between the points of f and g, the same for both."""
        self._same_space(other)
        between = self.kernel(self.points, other.points)
        return float(self.coefficients @ between @ other.coefficients)

    @property
    def squared_norm(self) -> float:
        """‖f‖² = αᵀKα. Raises ValueError if it is negative because the kernel is indefinite."""
        matrix = gram(self.kernel, self.points)
        found = float(self.coefficients @ matrix @ self.coefficients)
        return not_negative(self.kernel, found, self.coefficients, matrix)

    @property
    def norm(self) -> float:
        """‖f‖ in the space of the kernel."""
        return math.sqrt(self.squared_norm)

    @property
    def weights(self) -> Floats:
        """w = Φᵀα (m,), with f(x) = w·φ(x) and ‖f‖ = ‖w‖, if the kernel has a finite map."""
        feature_map = self.kernel.feature_map
        if feature_map is None:
            raise ValueError(f"{self.kernel} has no finite feature map, so f has no weights")
        return explicit(feature_map, self.points).T @ self.coefficients

    def __add__(self, other: RKHSFunction) -> RKHSFunction:
        self._same_space(other)
        where = np.concatenate([self.points, other.points])
        alpha = np.concatenate([self.coefficients, other.coefficients])
        return RKHSFunction(self.kernel, where, alpha)

    def __sub__(self, other: RKHSFunction) -> RKHSFunction:
        return self + -1.0 * other

    def __mul__(self, factor: float) -> RKHSFunction:
        return RKHSFunction(self.kernel, self.points, factor * self.coefficients)

    __rmul__ = __mul__

    def __repr__(self) -> str:
        return f"<function of {len(self.points)} points in the space of {self.kernel}>"

    def _same_space(self, other: RKHSFunction) -> None:
        if self.kernel != other.kernel:
            raise ValueError(
                f"functions with different kernels have no inner product or sum: one has "
                f"{self.kernel}, the other {other.kernel}"
            )


def not_negative(kernel: Kernel, found: float, alpha: Floats, matrix: Floats) -> float:
    """αᵀKα, or 0 if only rounding made it negative. Raises ValueError otherwise."""
    if not found < 0:
        return found
    size = float(np.abs(alpha) @ np.abs(matrix) @ np.abs(alpha))
    if -found > 16 * len(alpha) * _EPS * size:
        raise ValueError(
            f"{kernel} is not positive semi-definite: here ‖f‖² = {found:.4g} < 0, so its "
            f"functions have no norm"
        )
    return 0.0
