"""Lab 06: cases and common mistakes of Gram matrices and of functions in a kernel's space."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.labs import kernel_methods
from kerneltrick.labs.grader._lab import Case, Exercise, Mistake
from kerneltrick.labs.grader._semidefinite import (
    definite,
    elu_gram,
    judge_direction,
    spectrum,
    symmetric,
    symmetry_mistakes,
    without_tolerance,
)

Array = np.ndarray[Any, Any]
_RNG = np.random.default_rng(6)


def normal(*shape: int) -> Array:
    return _RNG.standard_normal(shape)


# --- Gram matrices ----------------------------------------------------------------------------

POLYNOMIAL = Exercise(
    "polynomial_gram",
    cases=(
        Case((normal(5, 3), normal(7, 3))),
        Case((normal(4, 2), normal(6, 2), 3, 0.5), about="for degree 3 and constant 0.5"),
        Case(
            (normal(6, 4), normal(6, 4)),
            {"degree": 1, "constant": 0.0},
            about="for degree 1 and constant 0, the linear kernel",
        ),
        Case((normal(3, 1), normal(5, 1)), {"constant": 2.0}, about="for constant 2"),
    ),
    mistakes=(
        Mistake(
            "your matrix is (x·y)ᵖ + c: add the constant before taking the power",
            lambda X, Y, degree=2, constant=1.0: (X @ Y.T) ** degree + constant,
        ),
        Mistake(
            "your matrix is (x·y)ᵖ: the constant is missing",
            lambda X, Y, degree=2, constant=1.0: (X @ Y.T) ** degree,
        ),
        Mistake(
            "your matrix is (x·y + 1)ᵖ whatever `constant` is",
            lambda X, Y, degree=2, constant=1.0: (X @ Y.T + 1) ** degree,
        ),
        Mistake(
            "your matrix is (x·y + c)² whatever `degree` is",
            lambda X, Y, degree=2, constant=1.0: (X @ Y.T + constant) ** 2,
        ),
        Mistake(
            "your matrix is Σ(xᵢyᵢ)ᵖ + c: the power belongs around the whole sum, (Σxᵢyᵢ + c)ᵖ",
            lambda X, Y, degree=2, constant=1.0: X**degree @ (Y**degree).T + constant,
        ),
        Mistake(
            "your matrix is p·(x·y + c): the degree is an exponent, not a factor",
            lambda X, Y, degree=2, constant=1.0: degree * (X @ Y.T + constant),
        ),
    ),
)


def _distances(X: Array, Y: Array) -> Array:
    """‖x − y‖² for all pairs."""
    return np.asarray(np.sum((X[:, None] - Y[None]) ** 2, axis=-1))


RBF = Exercise(
    "rbf_gram",
    cases=(
        Case((normal(5, 3), normal(7, 3)), {"length": 2.0}, about="for length 2"),
        Case((normal(6, 2), normal(4, 2), 0.6), about="for length 0.6"),
        Case((normal(6, 4), normal(6, 4)), about="for length 1, the default"),
    ),
    mistakes=(
        Mistake(
            "your matrix is exp(−‖x − y‖²/2) whatever `length` is",
            lambda X, Y, length=1.0: np.exp(-_distances(X, Y) / 2),
        ),
        Mistake(
            "your matrix is exp(−‖x − y‖²/ℓ²): the factor ½ is missing, γ is 1/2ℓ²",
            lambda X, Y, length=1.0: np.exp(-_distances(X, Y) / length**2),
        ),
        Mistake(
            "your matrix is exp(−‖x − y‖²/2ℓ): the length is not squared",
            lambda X, Y, length=1.0: np.exp(-_distances(X, Y) / (2 * length)),
        ),
        Mistake(
            "your matrix is exp(−ℓ‖x − y‖²): the length is not γ; γ is 1/2ℓ²",
            lambda X, Y, length=1.0: np.exp(-length * _distances(X, Y)),
        ),
        Mistake(
            "your matrix is exp(−‖x − y‖/2ℓ²): the distance is not squared",
            lambda X, Y, length=1.0: np.exp(-np.sqrt(_distances(X, Y)) / (2 * length**2)),
        ),
        Mistake(
            "your matrix is exp(−‖x − y‖/ℓ): that is the Laplace kernel; here the exponent is −‖x "
            "− y‖²/2ℓ²",
            lambda X, Y, length=1.0: np.exp(-np.sqrt(_distances(X, Y)) / length),
        ),
        Mistake(
            "your matrix is exp(+‖x − y‖²/2ℓ²): the minus sign in the exponent is missing",
            lambda X, Y, length=1.0: np.exp(_distances(X, Y) / (2 * length**2)),
        ),
        Mistake(
            "your matrix is exp(x·y/ℓ²), the exponential kernel: the RBF kernel has the distance "
            "in the exponent",
            lambda X, Y, length=1.0: np.exp(X @ Y.T / length**2),
        ),
        Mistake(
            "your squared distance is ‖x‖² + ‖y‖² − x·y: it has 2x·y",
            lambda X, Y, length=1.0: np.exp(-(_distances(X, Y) + X @ Y.T) / (2 * length**2)),
        ),
    ),
)


# --- positive semi-definite -------------------------------------------------------------------


def _matrices() -> tuple[Case, ...]:
    x = normal(12, 2)
    singular = (x @ x.T + 1) ** 2
    skew = np.array([[0.0, 1.0, -1.0], [-1.0, 0.0, 1.0], [1.0, -1.0, 0.0]])
    return (
        Case((singular,), about="for 12 points and a kernel with 6 features: a singular matrix"),
        Case((x @ x.T,), about="for x·y, with entries of both signs"),
        Case((elu_gram(),), about="for elu(x·y) + 1 on ±1, ±2: positive, not semi-definite"),
        Case((3 * np.eye(3) + skew,), about="for a matrix that is not symmetric"),
        Case((-np.eye(2),), about="for −I, whose determinant is positive"),
        Case((np.diag([2.0, 1.0, 0.0]),), about="for an eigenvalue that is exactly 0"),
        Case((np.array([[1.0, 2.0], [2.0, 1.0]]),), about="for the eigenvalues 3 and −1"),
        Case((1e8 * singular,), about="for a Gram matrix of large numbers"),
        Case((1e-12 * elu_gram(),), about="for small numbers that are not semi-definite"),
        Case((singular * (1 + 1e-13 * normal(12, 12)),), about="for symmetry but for rounding"),
        Case(
            (1e-12 * (3 * np.eye(3) + skew),),
            about="for small numbers that are not symmetric",
            edge=True,
        ),
        Case(
            (np.array([[2.0, 1e-12, 1.0], [0.0, 1.0, 0.0], [1.0, 1e-13, 3.0]]),),
            about="for entries that are 0 but for rounding",
            edge=True,
        ),
    )


def _symmetric_by(tolerance: Callable[[Array], Any]) -> Callable[[Array], bool]:
    """The test with another tolerance for the symmetry."""

    def answer(K: Array) -> bool:
        smallest, largest = spectrum(K)
        return bool(np.all(np.abs(K - K.T) <= tolerance(K))) and smallest >= -1e-9 * largest

    return answer


GRAM = Exercise(
    "is_gram_matrix",
    cases=_matrices(),
    mistakes=(
        Mistake(
            "eigenvalues are compared with 0 without a tolerance: this rejects a singular Gram "
            "matrix, whose zero eigenvalues come out as −1e-16. Compare with −1e-9 of the largest",
            without_tolerance,
        ),
        Mistake(
            "a singular Gram matrix is refused: eigenvalues 0 are allowed. A test with > 0, or a "
            "Cholesky factorisation, tests for positive definite",
            definite,
        ),
        Mistake(
            "the signs of the entries are tested: only eigenvalues matter. x·y has both signs and "
            "is a kernel; elu(x·y) + 1 is positive and is not",
            lambda K: symmetric(K) and bool(np.all(K >= 0)),
        ),
        Mistake(
            "only the diagonal is tested: k(x, x) ≥ 0 is necessary, not sufficient",
            lambda K: symmetric(K) and bool(np.all(np.diagonal(K) >= 0)),
        ),
        Mistake(
            "the determinant is tested: −I (2×2) has the determinant 1 and no eigenvalue ≥ 0",
            lambda K: symmetric(K) and bool(np.linalg.det(K / np.max(np.abs(K))) >= -1e-9),
        ),
        Mistake(
            "the symmetry is not tested: np.linalg.eigvalsh reads only one triangle, as if every "
            "matrix were symmetric",
            lambda K: bool(
                np.linalg.eigvalsh(K)[0] >= -1e-9 * np.max(np.abs(np.linalg.eigvalsh(K)))
            ),
        ),
        Mistake(
            "the symmetry is compared bit by bit: allow for rounding, 1e-9 of the largest entry",
            lambda K: bool(np.array_equal(K, K.T)) and kernel_methods.is_gram_matrix(K),
        ),
        *symmetry_mistakes("the symmetry", "Kᵢⱼ", _symmetric_by),
        Mistake(
            "the tolerance is absolute, but rounding grows with the size of the numbers. Compare "
            "with 1e-9 of the largest |eigenvalue|",
            lambda K: bool(np.allclose(K, K.T)) and spectrum(K)[0] >= -1e-9,
        ),
    ),
)


def _indefinite() -> tuple[Case, ...]:
    x = normal(8, 2)
    rotation, _ = np.linalg.qr(normal(6, 6))
    return (
        Case((np.array([[1.0, 2.0], [2.0, 1.0]]),)),
        Case((elu_gram(),), about="for elu(x·y) + 1 on ±1, ±2"),
        Case(
            ((rotation * np.array([-0.1, 0.5, 1.0, 2.0, 3.0, 4.0])) @ rotation.T,),
            about="for one eigenvalue below 0 among six",
        ),
        Case((np.maximum(x @ x.T, 0),), about="for relu(x·y) on 8 points"),
    )


NEGATIVE = Exercise("negative_direction", cases=_indefinite(), judge=judge_direction)


# --- functions of the space -------------------------------------------------------------------


def rbf(X: Array, Y: Array, length: float = 1.0) -> Array:
    return np.exp(-_distances(X, Y) / (2 * length**2))


def _norm_cases() -> tuple[Case, ...]:
    x = normal(7, 2)
    return (
        Case((normal(7), rbf(x, x)), about="for an RBF kernel"),
        Case((normal(7), x @ x.T), about="for x·y"),
        Case((np.array([3.0, 1.0]), np.diag([1.0, 4.0])), about="for K = diag(1, 4)"),
    )


NORM = Exercise(
    "rkhs_norm",
    cases=_norm_cases(),
    mistakes=(
        Mistake(
            "your norm is √(αᵀα), the length of the coefficient vector: ‖f‖² = αᵀKα",
            lambda alpha, K: np.sqrt(alpha @ alpha),
        ),
        Mistake(
            "your result is αᵀKα, which is ‖f‖²: take the root", lambda alpha, K: alpha @ K @ alpha
        ),
        Mistake(
            "your result is αᵀα: ‖f‖² is αᵀKα, and the norm is its root",
            lambda alpha, K: alpha @ alpha,
        ),
        Mistake(
            "your norm is ‖Kα‖, the length of the vector of values f(xᵢ): ‖f‖² = αᵀKα",
            lambda alpha, K: np.linalg.norm(K @ alpha),
        ),
        Mistake(
            "your norm is √(Σαᵢ²k(xᵢ, xᵢ)): the pairs i ≠ j are missing, ‖f‖² = Σᵢⱼ αᵢαⱼk(xᵢ, xⱼ)",
            lambda alpha, K: np.sqrt(alpha**2 @ np.diagonal(K)),
        ),
    ),
)


def _representer_cases() -> tuple[Case, ...]:
    x, z = 1.5 * normal(5, 2), 1.5 * normal(8, 2)
    same = 1.5 * normal(5, 2)
    return (
        Case((normal(8), 3 * rbf(x, z), 3 * rbf(x, x)), about="for 8 points z and 5 points x"),
        Case((normal(5), rbf(x, same), rbf(x, x)), about="for as many points z as x"),
        Case((normal(5), rbf(x, x), rbf(x, x)), about="where g is in the span already"),
    )


REPRESENTER = Exercise(
    "representer",
    cases=_representer_cases(),
    mistakes=(
        Mistake(
            "your α are the values g(xᵢ) = Σⱼ γⱼk(xᵢ, zⱼ): find the α whose f has these values, "
            "K_XX α = K_XZ γ",
            lambda gamma, K_XZ, K_XX: K_XZ @ gamma,
        ),
        Mistake(
            "your α are K_XX K_XZ γ: solve the system with K_XX instead of multiplying by it",
            lambda gamma, K_XZ, K_XX: K_XX @ K_XZ @ gamma,
        ),
        Mistake(
            "your α solve K_XX α = K_XZᵀγ: K_XZ has the points x in its rows, so g(xᵢ) is K_XZ γ",
            lambda gamma, K_XZ, K_XX: np.linalg.solve(K_XX, np.resize(K_XZ.T @ gamma, len(K_XX))),
        ),
        Mistake(
            "your values g(xᵢ) are divided by k(xᵢ, xᵢ): the k(xᵢ, ·) are not orthogonal, solve "
            "K_XX α = K_XZ γ",
            lambda gamma, K_XZ, K_XX: K_XZ @ gamma / np.diagonal(K_XX),
        ),
    ),
)
