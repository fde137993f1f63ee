"""Gram matrices, and whether they are positive semi-definite."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from kerneltrick.kernels._check import Floats, points, square, whole
from kerneltrick.kernels._registry import KernelLike, get

_EPS = float(np.finfo(np.float64).eps)
_ASYMMETRY = 1e-12  # of the largest entry: what rounding may make of a symmetric kernel
_ROUNDING = 16  # times n·ε·max|λ|: what rounding of the entries and of the eigenvalues may do


def gram(kernel: KernelLike, x: Any, y: Any = None) -> Floats:
    """K_ij = k(xᵢ, yⱼ), (n_x, n_y); without y the symmetric matrix of x with itself.

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
    """Whether a Gram matrix is positive semi-definite; true or false as a condition.

    `eigenvalue` is the smallest, `eigenvector` (n,) its unit vector: vᵀKv = Σ vᵢvⱼk(xᵢ, xⱼ) = λ.
    `points` (n, d) are those the kernel was asked about, if it was a kernel.
    """

    holds: bool
    eigenvalue: float
    eigenvector: Floats
    tolerance: float  # how far below 0 rounding alone may bring the eigenvalue
    points: Floats | None
    reason: str

    def __bool__(self) -> bool:
        return self.holds

    def __str__(self) -> str:
        return self.reason


def is_positive_semidefinite(
    kernel: Any, x: Any = None, *, tolerance: float | None = None
) -> PSDResult:
    """Whether the Gram matrix of a kernel on points x, or a matrix given alone, has no λ < 0.

    An eigenvalue counts as negative below −`tolerance`, by default what rounding can do. One set
    of points refutes a kernel and never proves it: `find_indefinite` searches for one.

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
    """Search for points that show a kernel not to be positive semi-definite, as few as possible.

    Small whole numbers, grids on spheres and Gaussian points of many sizes, in d dimensions (1, 2
    and 3 if not given). A true result means only that none of them refutes the kernel.

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
            except ValueError as error:  # outside its domain, such as the cosine of zero
                problem = error
                continue
            tried += 1
            result = _judge(matrix, candidate, None)
            if not result:
                return _fewest(chosen, result)
            if best is None or result.eigenvalue < best.eigenvalue:
                best = result
    if best is None:
        raise ValueError(f"{chosen} is defined on none of the points tried: {problem}")
    reason = f"no counterexample to {chosen} among {tried} sets of points; that is not a proof"
    return dataclasses.replace(best, reason=reason)


def nearest_psd(matrix: Any) -> Floats:
    """The positive semi-definite matrix nearest to a square one in the Frobenius norm.

    Higham 1988, Theorem 2.1: the symmetric part with its negative eigenvalues set to 0.

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
    """Where the matrix is not symmetric, if it is not."""
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
    """Leave out points, the least important first, as long as the refutation stands."""
    again = True
    while again and result.points is not None and len(result.points) > 2:
        again = False
        for i in np.argsort(np.abs(result.eigenvector), kind="stable"):
            fewer = np.delete(result.points, i, axis=0)
            shorter = _judge(kernel(fewer), fewer, None)
            # Not down to the edge of rounding: a counterexample should convince.
            if not shorter and shorter.eigenvalue < result.eigenvalue / 10:
                result, again = shorter, True
                break
    return result


def _listed(vector: Floats) -> str:
    shown = ", ".join(f"{v:.4g}" for v in vector[:8])
    return f"({shown}{', …' if len(vector) > 8 else ''})"
