"""Linear algebra for kernels: distances and angles without cancellation, and Cholesky."""

from __future__ import annotations

import dataclasses

import numpy as np

from kerneltrick.kernels._check import Floats

_EPS = float(np.finfo(np.float64).eps)
_BLOCK = 64  # rows solved at once by substitution; the rest is matrix products
_PAIRS = 1 << 20  # numbers processed at once


def squares(x: Floats) -> Floats:
    """‖xᵢ‖² of every row."""
    found: Floats = np.einsum("nd,nd->n", x, x)
    return found


def squared_distances(x: Floats, y: Floats) -> Floats:
    """‖xᵢ − yⱼ‖² as (n_x, n_y), with a relative error of at most about 10⁻¹².

    ‖x‖² + ‖y‖² − 2x·y cancels for points that are close to each other and far from the origin.
    Most data has few such pairs; they are computed again from their differences.
    """
    same = x is y
    centre = x.mean(axis=0) if len(x) else 0.0
    a = x - centre
    b = a if same else y - centre
    sums = squares(a)[:, None] + squares(b)[None, :]
    distances: Floats = sums - 2 * (a @ b.T)
    if same:
        np.fill_diagonal(distances, 0.0)
        np.fill_diagonal(sums, 0.0)
    rows, columns = np.nonzero(distances < 1e-3 * sums)
    step = max(1, _PAIRS // x.shape[1])
    for start in range(0, len(rows), step):
        i, j = rows[start : start + step], columns[start : start + step]
        distances[i, j] = np.sum((x[i] - y[j]) ** 2, axis=1)
    return distances


def unit_rows(x: Floats) -> tuple[Floats, Floats]:
    """The rows scaled to length 1, and their lengths. A row of zeros stays zero."""
    largest = np.max(np.abs(x), axis=1, keepdims=True)  # avoids overflow of the squares
    scaled = x / np.where(largest > 0, largest, 1.0)
    lengths = np.sqrt(np.sum(scaled * scaled, axis=1, keepdims=True))
    return scaled / np.where(largest > 0, lengths, 1.0), (largest * lengths)[:, 0]


def angles(u: Floats, v: Floats) -> Floats:
    """The angles between unit vectors, with an absolute error near 10⁻¹⁵; π/2 for a zero vector.

    θ = 2 atan2(‖u − v‖, ‖u + v‖) (Kahan). The arccos of u·v loses half of the digits if u ≈ ±v.
    """
    apart = squared_distances(u, v)
    together = squared_distances(u, -v)
    theta: Floats = 2 * np.arctan2(np.sqrt(apart), np.sqrt(together))
    zero = np.logical_or.outer(~np.any(u, axis=1), ~np.any(v, axis=1))
    return np.where(zero, np.pi / 2, theta)


@dataclasses.dataclass(frozen=True, eq=False)
class Cholesky:
    """A = LLᵀ, for solves and the determinant."""

    lower: Floats

    @staticmethod
    def of(matrix: Floats) -> Cholesky | None:
        """The factorisation, or None if A is not positive definite to working precision."""
        try:
            lower = np.linalg.cholesky(matrix)
        except np.linalg.LinAlgError:
            return None
        pivots = np.diagonal(lower) ** 2
        if pivots.min() <= len(matrix) * _EPS * pivots.max():
            return None  # the smallest pivot is only rounding error
        return Cholesky(np.asarray(lower, dtype=np.float64))

    def half_solve(self, b: Floats) -> Floats:
        """L⁻¹b, whose squared norm is bᵀA⁻¹b."""
        x = np.empty_like(b)
        for start in range(0, len(b), _BLOCK):
            here = slice(start, start + _BLOCK)
            rest = b[here] - self.lower[here, :start] @ x[:start]
            x[here] = np.linalg.solve(self.lower[here, here], rest)
        return x

    def solve(self, b: Floats) -> Floats:
        """A⁻¹b."""
        half = self.half_solve(b)
        x = np.empty_like(half)
        for start in reversed(range(0, len(b), _BLOCK)):
            here, below = slice(start, start + _BLOCK), slice(start + _BLOCK, None)
            rest = half[here] - self.lower[below, here].T @ x[below]
            x[here] = np.linalg.solve(self.lower[here, here].T, rest)
        return x

    def log_determinant(self) -> float:
        """log|A| = 2 Σ log Lᵢᵢ."""
        return 2 * float(np.sum(np.log(np.diagonal(self.lower))))
