"""Solve with K + rI on training points, by the n×n Gram matrix or by m features.

With K = ΦΦᵀ and A = ΦᵀΦ + rI (m×m):
    (K + rI)⁻¹y = (y − ΦA⁻¹Φᵀy)/r          log|K + rI| = log|A| + (n − m) log r
so that everything that costs O(n³) with K costs O(n·m²) with Φ.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from kerneltrick import maps
from kerneltrick.kernels._base import Kernel
from kerneltrick.kernels._check import Floats, Solver, one_of
from kerneltrick.kernels._linalg import Cholesky
from kerneltrick.kernels._of_map import explicit
from kerneltrick.kernels._psd import gram


def choose(who: str, kernel: Kernel, x: Floats, solver: Solver) -> maps.FeatureMap | None:
    """The feature map to solve with, or None for the Gram matrix. "auto" takes the smaller one."""
    one_of(who, "solver", solver, ("auto", "dual", "primal"))
    feature_map = kernel.feature_map
    if solver == "primal" and feature_map is None:
        raise ValueError(
            f"{who} has solver='primal', but {kernel} has no finite feature map; use "
            f"solver='dual', or MapKernel(kernel.random_features(256)) for an approximation"
        )
    if feature_map is None or solver == "dual":
        return None
    if solver == "auto" and feature_map.dim(x.shape[1]) > len(x):
        return None
    return feature_map


@dataclasses.dataclass(frozen=True, eq=False)
class System:
    """The factorisation of K + rI."""

    kernel: Kernel
    points: Floats
    shift: float
    feature_map: maps.FeatureMap | None
    features: Floats | None  # Φ (n, m), if features are used
    factor: Cholesky  # of K + rI (n×n) or of ΦᵀΦ + rI (m×m)

    @staticmethod
    def of(who: str, kernel: Kernel, x: Floats, shift: float, solver: Solver) -> System:
        feature_map = choose(who, kernel, x, solver)
        if feature_map is None:
            features, matrix = None, gram(kernel, x)
        else:
            features = explicit(feature_map, x)
            matrix = features.T @ features
        largest = float(np.abs(matrix).max())
        matrix.flat[:: len(matrix) + 1] += shift
        factor = Cholesky.of(matrix)
        if factor is None:
            raise ValueError(_why(who, kernel, matrix, shift, largest))
        return System(kernel, x, shift, feature_map, features, factor)

    @property
    def solver(self) -> Solver:
        return "dual" if self.features is None else "primal"

    def solve(self, y: Floats) -> tuple[Floats, Floats | None]:
        """α = (K + rI)⁻¹y, and w = Φᵀα if features are used."""
        if self.features is None:
            return self.factor.solve(y), None
        w = self.factor.solve(self.features.T @ y)
        return (y - self.features @ w) / self.shift, w

    def predict(self, x: Floats, alpha: Floats, w: Floats | None) -> Floats:
        """k(x, X)α = φ(x)w."""
        if self.feature_map is None or w is None:
            return self.kernel(x, self.points) @ alpha
        return explicit(self.feature_map, x) @ w

    def log_determinant(self) -> float:
        """log|K + rI|, for features by the determinant identity."""
        found = self.factor.log_determinant()
        if self.features is None:
            return found
        n, m = self.features.shape
        return found + int(n - m) * math.log(self.shift)

    def variance(self, x: Floats) -> Floats:
        """k(x, x) − k(x, X)(K + rI)⁻¹k(X, x) = r·φ(x)ᵀA⁻¹φ(x) for each point."""
        if self.feature_map is None:
            half = self.factor.half_solve(self.kernel(self.points, x))
            # The difference is ≥ 0 in exact arithmetic.
            return np.asarray(np.maximum(self.kernel.diagonal(x) - np.sum(half**2, axis=0), 0.0))
        half = self.factor.half_solve(explicit(self.feature_map, x).T)
        return np.asarray(self.shift * np.sum(half**2, axis=0))


def _why(who: str, kernel: Kernel, matrix: Floats, shift: float, largest: float) -> str:
    smallest = float(np.linalg.eigvalsh(matrix)[0])
    if smallest < -1e-10 * largest:
        return (
            f"{who} cannot solve with {kernel}, which is not positive semi-definite on these "
            f"points: its Gram matrix has the eigenvalue {smallest - shift:.4g}; use another "
            f"kernel or nearest_psd"
        )
    return (
        f"{who} cannot solve with {kernel}: its Gram matrix is singular to working precision, and "
        f"adding {shift:.3g} to its diagonal (entries up to {largest:.3g}) does not help; use a "
        f"larger penalty or remove repeated points"
    )
