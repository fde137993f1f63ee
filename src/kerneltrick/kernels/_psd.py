"""Compute Gram matrices and check whether they are positive semi-definite."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kerneltrick.kernels._check import Floats, points, square, whole
from kerneltrick.kernels._registry import KernelLike, get

_EPS = float(np.finfo(np.float64).eps)
_ASYMMETRY = 1e-12  # relative to the largest entry: asymmetry that rounding can cause
_ROUNDING = 16  # times n·ε·max|λ|: error of eigenvalues that rounding can cause


def gram(kernel: KernelLike, x: Any, y: Any = None) -> Floats:
    """The matrix K_ij = k(xᵢ, yⱼ) of shape (n_x, n_y). Without y, it is the Gram matrix of x.

    >>> gram("linear", [[1, 2], [3, 4]])
    array([[ 5., 11.],
           [11., 25.]])
    """
    kernel = get(kernel)
    if y is not None:
        return kernel(x, y)
    matrix = kernel(x)
    place = _asymmetry(matrix)
    if place is not None:
        i, j = place
        raise ValueError(
            f"{kernel} is not symmetric: k(x{i}, x{j}) = {matrix[i, j]:.6g} but k(x{j}, x{i}) = "
            f"{matrix[j, i]:.6g}; kernel methods need k(x, y) = k(y, x)"
        )
    return (matrix + matrix.T) / 2


@dataclasses.dataclass(frozen=True, eq=False)
class PSDResult:
    """Whether a Gram matrix is positive semi-definite. The result works as a bool.

    `eigenvalue` is the smallest eigenvalue λ and `eigenvector` (n,) its unit vector v, so that
    vᵀKv = Σ vᵢvⱼk(xᵢ, xⱼ) = λ. `points` (n, d) are the points of a kernel, and None for a matrix.
    """

    holds: bool
    eigenvalue: float
    eigenvector: Floats
    tolerance: float  # how far below 0 rounding can move the eigenvalue
    points: Floats | None
    reason: str

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        return self.reason


def is_positive_semidefinite(
    kernel: Any, x: Any = None, *, tolerance: float | None = None
) -> PSDResult:
    """Check whether the Gram matrix of a kernel on points x, or a given matrix, has no λ < 0.

    An eigenvalue below −`tolerance` counts as negative. The default tolerance is the effect that
    rounding can have. One set of points can refute a kernel, but never prove it; `find_indefinite`
    searches for such a set.

    >>> print(is_positive_semidefinite([[1.0, 2.0], [2.0, 1.0]]))
    not positive semi-definite: eigenvalue -1 with eigenvector (-0.7071, 0.7071)
    """
    who = "is_positive_semidefinite"
    if x is None:
        if isinstance(kernel, str) or callable(kernel):
            raise TypeError(
                f"{who} needs points for {kernel}: {who}(kernel, x), or find_indefinite(kernel)"
            )
        return _judge(square(who, kernel), None, tolerance)
    where = points(who, "x", x, least=1)
    return _judge(get(kernel)(where), where, tolerance)


def find_indefinite(
    kernel: KernelLike, d: int | None = None, *, seed: int = 0, tries: int = 40
) -> PSDResult:
    """Search for points, as few as possible, that refute that a kernel is positive semi-definite.

    The search tries small whole numbers, points on circles and Gaussian points of many sizes, in d
    dimensions (by default 1, 2 and 3). A true result only means that no such points were found.

    >>> result = find_indefinite("elu_dot", 1)
    >>> bool(result), result.points.tolist()
    (False, [[-2.0], [-1.0], [1.0], [2.0]])
    """
    chosen = get(kernel)
    dimensions = (1, 2, 3) if d is None else (whole("find_indefinite", "d", d),)
    whole("find_indefinite", "tries", tries)
    best: PSDResult | None = None
    problem: ValueError | None = None
    tried = 0
    for width in dimensions:
        for candidate in _candidates(width, seed, tries):
            try:
                matrix = chosen(candidate)
            except ValueError as error:  # outside the domain, such as the cosine of a zero vector
                problem = error
                continue
            tried += 1
            result = _judge(matrix, candidate, None)
            if not result:
                return _fewest(chosen, result)
            if best is None or result.eigenvalue < best.eigenvalue:
                best = result
    if best is None:
        raise ValueError(f"{chosen} is not defined on any of the points tried: {problem}")
    reason = f"no counterexample to {chosen} in {tried} sets of points, which is not a proof"
    return dataclasses.replace(best, reason=reason)


def nearest_psd(matrix: Any) -> Floats:
    """The positive semi-definite matrix that is closest to a square matrix (Frobenius norm).

    It is the symmetric part with negative eigenvalues set to 0 (Higham 1988, Theorem 2.1).

    >>> nearest_psd([[1.0, 2.0], [2.0, 1.0]])
    array([[1.5, 1.5],
           [1.5, 1.5]])
    """
    given = square("nearest_psd", matrix)
    values, vectors = np.linalg.eigh((given + given.T) / 2)
    kept = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(kept @ kept.T)


def _judge(matrix: Floats, where: Floats | None, tolerance: float | None) -> PSDResult:
    place = _asymmetry(matrix)
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    value, vector = float(values[0]), vectors[:, 0]
    if tolerance is None:
        tolerance = _ROUNDING * len(matrix) * _EPS * float(np.abs(values).max())
    elif not tolerance >= 0:
        raise ValueError(f"is_positive_semidefinite needs tolerance ≥ 0, not {tolerance!r}")
    if place is not None:
        i, j = place
        reason = (
            f"not positive semi-definite: not symmetric, entry ({i}, {j}) is {matrix[i, j]:.6g} "
            f"and ({j}, {i}) is {matrix[j, i]:.6g}"
        )
        return PSDResult(False, value, vector, tolerance, where, reason)
    if value < -tolerance:
        reason = f"not positive semi-definite: eigenvalue {value:.4g} with eigenvector "
        reason += _listed(vector)
        if where is not None and len(where) <= 8:
            reason += " on the points " + ", ".join(_listed(row) for row in where)
        return PSDResult(False, value, vector, tolerance, where, reason)
    reason = f"no negative eigenvalue: the smallest of {len(matrix)} is {value:.4g}"
    return PSDResult(True, value, vector, tolerance, where, reason)


def _asymmetry(matrix: Floats) -> tuple[int, int] | None:
    """The place of the largest asymmetry, or None for a symmetric matrix."""
    difference = np.abs(matrix - matrix.T)
    if difference.size == 0 or difference.max() <= _ASYMMETRY * np.abs(matrix).max():
        return None
    i, j = np.unravel_index(int(np.argmax(difference)), matrix.shape)
    return int(i), int(j)


def _candidates(d: int, seed: int, tries: int) -> list[Floats]:
    rng = np.random.default_rng([seed, d])
    found = [np.array([-2.0, -1.0, 1.0, 2.0])[:, None] * np.eye(d)[:1]]
    if d > 1:
        angle = 2 * np.pi * np.arange(16) / 16
        circle = np.zeros((16, d))
        circle[:, 0], circle[:, 1] = np.cos(angle), np.sin(angle)
        found.append(circle)
    sizes = np.geomspace(0.1, 4.0, tries)
    return found + [size * rng.standard_normal((24, d)) for size in sizes]


def _fewest(kernel: Any, result: PSDResult) -> PSDResult:
    """Remove points, the least important first, as long as the refutation holds."""
    again = True
    while again and result.points is not None and len(result.points) > 2:
        again = False
        for i in np.argsort(np.abs(result.eigenvector), kind="stable"):
            fewer = np.delete(result.points, i, axis=0)
            shorter = _judge(kernel(fewer), fewer, None)
            # A counterexample should convince, so it keeps a distance from rounding.
            if not shorter and shorter.eigenvalue < result.eigenvalue / 10:
                result, again = shorter, True
                break
    return result


def _listed(vector: Floats) -> str:
    shown = ", ".join(f"{v:.4g}" for v in vector[:8])
    return f"({shown}{', …' if len(vector) > 8 else ''})"
