"""Lab 06, graded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.labs import kernel_methods
from kerneltrick.labs.grader._lab import Case, Exercise, Growth, Lab, Mistake
from kerneltrick.labs.grader._lab06_machine import judge_machine
from kerneltrick.labs.grader._semidefinite import (
    definite,
    elu_gram,
    judge_direction,
    spectrum,
    symmetric,
    without_tolerance,
)

Array = np.ndarray[Any, Any]
_RNG = np.random.default_rng(6)


def _normal(*shape: int) -> Array:
    return _RNG.standard_normal(shape)


# --- Gram matrices ----------------------------------------------------------------------------

POLYNOMIAL = Exercise(
    "polynomial_gram",
    cases=(
        Case((_normal(5, 3), _normal(7, 3))),
        Case((_normal(4, 2), _normal(6, 2), 3, 0.5), about="for degree 3 and constant 0.5"),
        Case(
            (_normal(6, 4), _normal(6, 4)),
            {"degree": 1, "constant": 0.0},
            about="for degree 1 and constant 0, the linear kernel",
        ),
        Case((_normal(3, 1), _normal(5, 1)), {"constant": 2.0}, about="for constant 2"),
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
        Case((_normal(5, 3), _normal(7, 3)), {"length": 2.0}, about="for length 2"),
        Case((_normal(6, 2), _normal(4, 2), 0.6), about="for length 0.6"),
        Case((_normal(6, 4), _normal(6, 4)), about="for length 1, the default"),
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
            "your matrix is exp(−ℓ‖x − y‖²): that takes the length for γ, which is 1/2ℓ²",
            lambda X, Y, length=1.0: np.exp(-length * _distances(X, Y)),
        ),
        Mistake(
            "your matrix is exp(−‖x − y‖/2ℓ²): the distance is not squared",
            lambda X, Y, length=1.0: np.exp(-np.sqrt(_distances(X, Y)) / (2 * length**2)),
        ),
        Mistake(
            "your matrix is exp(−‖x − y‖/ℓ): that is the Laplace kernel; this one has ‖x − y‖²/2ℓ²",
            lambda X, Y, length=1.0: np.exp(-np.sqrt(_distances(X, Y)) / length),
        ),
        Mistake(
            "your matrix is exp(+‖x − y‖²/2ℓ²): the sign in the exponent is missing",
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
    x = _normal(12, 2)
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
        Case((singular * (1 + 1e-13 * _normal(12, 12)),), about="for symmetry but for rounding"),
    )


GRAM = Exercise(
    "is_gram_matrix",
    cases=_matrices(),
    mistakes=(
        Mistake(
            "eigenvalues are compared with 0 without a tolerance: the zeros of a singular Gram "
            "matrix come out as −1e-16, and it is refused. Compare with −1e-9 of the largest",
            without_tolerance,
        ),
        Mistake(
            "a singular Gram matrix is refused: eigenvalues 0 are allowed. Strictly > 0, or a "
            "Cholesky factorisation, is a test for positive definite",
            definite,
        ),
        Mistake(
            "the signs of the entries are tested: positive semi-definite is about eigenvalues. x·y "
            "takes both signs and is a kernel, elu(x·y) + 1 is positive and is none",
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
            "the symmetry is not tested: np.linalg.eigvalsh looks at one triangle only and takes "
            "any matrix for a symmetric one",
            lambda K: bool(
                np.linalg.eigvalsh(K)[0] >= -1e-9 * np.max(np.abs(np.linalg.eigvalsh(K)))
            ),
        ),
        Mistake(
            "the symmetry is compared bit by bit: allow for rounding, 1e-9 of the largest entry",
            lambda K: bool(np.array_equal(K, K.T)) and kernel_methods.is_gram_matrix(K),
        ),
        Mistake(
            "the tolerance is absolute: rounding grows with the size of the numbers. Compare with "
            "1e-9 of the largest |eigenvalue|",
            lambda K: bool(np.allclose(K, K.T)) and spectrum(K)[0] >= -1e-9,
        ),
    ),
)


def _indefinite() -> tuple[Case, ...]:
    x = _normal(8, 2)
    rotation, _ = np.linalg.qr(_normal(6, 6))
    return (
        Case((np.array([[1.0, 2.0], [2.0, 1.0]]),)),
        Case((elu_gram(),), about="for elu(x·y) + 1 on ±1, ±2"),
        Case(
            ((rotation * np.array([-0.1, 0.5, 1.0, 2.0, 3.0, 4.0])) @ rotation.T,),
            about="for one eigenvalue below 0 among six",
        ),
        Case((np.maximum(x @ x.T, 0),), about="for relu(x·y) on 8 points"),
    )


# --- functions of the space -------------------------------------------------------------------


def _rbf(X: Array, Y: Array, length: float = 1.0) -> Array:
    return np.exp(-_distances(X, Y) / (2 * length**2))


def _norm_cases() -> tuple[Case, ...]:
    x = _normal(7, 2)
    return (
        Case((_normal(7), _rbf(x, x)), about="for an RBF kernel"),
        Case((_normal(7), x @ x.T), about="for x·y"),
        Case((np.array([3.0, 1.0]), np.diag([1.0, 4.0])), about="for K = diag(1, 4)"),
    )


NORM = Exercise(
    "rkhs_norm",
    cases=_norm_cases(),
    mistakes=(
        Mistake(
            "your norm is √(αᵀα), that of the list of coefficients: ‖f‖² = αᵀKα",
            lambda alpha, K: np.sqrt(alpha @ alpha),
        ),
        Mistake(
            "your result is αᵀKα, which is ‖f‖²: take the root", lambda alpha, K: alpha @ K @ alpha
        ),
        Mistake(
            "your result is αᵀα: ‖f‖² = αᵀKα, and take the root", lambda alpha, K: alpha @ alpha
        ),
        Mistake(
            "your norm is ‖Kα‖, the length of the list of values f(xᵢ): ‖f‖² = αᵀKα",
            lambda alpha, K: np.linalg.norm(K @ alpha),
        ),
        Mistake(
            "your norm is √(Σαᵢ²k(xᵢ, xᵢ)): the pairs i ≠ j are missing, ‖f‖² = Σᵢⱼ αᵢαⱼk(xᵢ, xⱼ)",
            lambda alpha, K: np.sqrt(alpha**2 @ np.diagonal(K)),
        ),
    ),
)


def _representer_cases() -> tuple[Case, ...]:
    x, z = 1.5 * _normal(5, 2), 1.5 * _normal(8, 2)
    same = 1.5 * _normal(5, 2)
    return (
        Case((_normal(8), 3 * _rbf(x, z), 3 * _rbf(x, x)), about="for 8 points z and 5 points x"),
        Case((_normal(5), _rbf(x, same), _rbf(x, x)), about="for as many points z as x"),
        Case((_normal(5), _rbf(x, x), _rbf(x, x)), about="where g is in the span already"),
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
            "your α are K_XX K_XZ γ: K_XX has to be solved for, not multiplied by",
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


# --- ridge regression and descent -------------------------------------------------------------


def _ridge_cases() -> tuple[Case, ...]:
    x, z = 1.5 * _normal(8, 2), _normal(12, 2)
    return (
        Case((_rbf(x, x), _normal(8), 0.1), about="for an RBF kernel, λ = 0.1"),
        Case((_rbf(z, z, 0.5), _normal(12), 0.02), about="for an RBF kernel, λ = 0.02"),
        Case((z @ z.T + 0.5 * np.eye(12), _normal(12), 0.5), about="for λ = 0.5"),
    )


DUAL = Exercise(
    "ridge_dual",
    cases=_ridge_cases(),
    mistakes=(
        Mistake(
            "your α match λ on the diagonal of K: λ stands beside the mean of the squares, so nλ "
            "is on the diagonal",
            lambda K, y, penalty: np.linalg.solve(K + penalty * np.eye(len(y)), y),
        ),
        Mistake(
            "your α match λ/n on the diagonal of K: it is nλ",
            lambda K, y, penalty: np.linalg.solve(K + penalty / len(y) * np.eye(len(y)), y),
        ),
        Mistake(
            "your α match K⁻¹y: the penalty is missing, and f goes through every point",
            lambda K, y, penalty: np.linalg.solve(K, y),
        ),
        Mistake(
            "your α match nλ added to every entry of K: it belongs on the diagonal, nλ·I",
            lambda K, y, penalty: np.linalg.solve(K + len(y) * penalty, y),
        ),
        Mistake(
            "your α match λ added to every entry of K: nλ belongs on the diagonal, nλ·I",
            lambda K, y, penalty: np.linalg.solve(K + penalty, y),
        ),
        Mistake(
            "your α minimise with λαᵀα for a penalty, (K² + nλI)⁻¹Ky: ‖f‖² is αᵀKα",
            lambda K, y, penalty: np.linalg.solve(K @ K + len(y) * penalty * np.eye(len(y)), K @ y),
        ),
        Mistake(
            "your result is Kα, the fitted values: return α",
            lambda K, y, penalty: K @ np.linalg.solve(K + len(y) * penalty * np.eye(len(y)), y),
        ),
        Mistake(
            "your result is (K + nλI)y: the matrix has to be solved for, not multiplied by",
            lambda K, y, penalty: (K + len(y) * penalty * np.eye(len(y))) @ y,
        ),
    ),
)


def _primal(Phi: Array, right: Array, diagonal: Any) -> Array:
    return np.linalg.solve(Phi.T @ Phi + diagonal, right)


def _growing(n: int) -> Case:
    rng = np.random.default_rng(n)
    return Case((rng.standard_normal((n, 5)), rng.standard_normal(n), 0.1))


PRIMAL = Exercise(
    "ridge_primal",
    cases=(
        Case((_normal(20, 4), _normal(20), 0.1), about="for 20 points and 4 features"),
        Case((_normal(15, 3), _normal(15), 0.5), about="for λ = 0.5"),
        Case((_normal(6, 9), _normal(6), 0.2), about="for more features than points"),
    ),
    mistakes=(
        Mistake(
            "your w match λ on the diagonal of ΦᵀΦ: λ stands beside the mean of the squares, so nλ "
            "is on the diagonal",
            lambda Phi, y, penalty: _primal(Phi, Phi.T @ y, penalty * np.eye(Phi.shape[1])),
        ),
        Mistake(
            "your w match mλ on the diagonal, m the number of features: it is nλ, n the number of "
            "points",
            lambda Phi, y, penalty: _primal(
                Phi, Phi.T @ y, Phi.shape[1] * penalty * np.eye(Phi.shape[1])
            ),
        ),
        Mistake(
            "your w match least squares: the penalty is missing",
            lambda Phi, y, penalty: np.linalg.lstsq(Phi, y, rcond=None)[0],
        ),
        Mistake(
            "your w match nλ added to every entry of ΦᵀΦ: it belongs on the diagonal, nλ·I",
            lambda Phi, y, penalty: _primal(Phi, Phi.T @ y, len(y) * penalty),
        ),
        Mistake(
            "your w match ΦᵀΦ/n + nλI with Φᵀy/n: divide by n throughout, also nλ, or not at all",
            lambda Phi, y, penalty: np.linalg.solve(
                Phi.T @ Phi / len(y) + len(y) * penalty * np.eye(Phi.shape[1]), Phi.T @ y / len(y)
            ),
        ),
    ),
    memory=Growth(
        _growing,
        sizes=(500, 2000),
        hint="this forms an n×n array: peak memory grows as n². ΦᵀΦ is m×m, ΦΦᵀ is n×n",
    ),
)


def _descend(
    step: Callable[[Array, Array, Array, float], Array], extra: int = 0
) -> Callable[..., Array]:
    """Descent with another gradient: step(alpha, K, y, penalty)."""

    def answer(K: Array, y: Array, penalty: float, rate: float, steps: int) -> Array:
        alpha = np.zeros(len(y))
        for _ in range(max(steps + extra, 0)):
            alpha = alpha - rate * step(alpha, K, y, penalty)
        return alpha

    return answer


def _right_step(alpha: Array, K: Array, y: Array, penalty: float) -> Array:
    return 2 / len(y) * (K @ alpha - y) + 2 * penalty * alpha


def _coordinate_step(alpha: Array, K: Array, y: Array, penalty: float) -> Array:
    return K @ _right_step(alpha, K, y, penalty)


def _ridge_at_once(K: Array, y: Array, penalty: float, rate: float, steps: int) -> Array:
    return kernel_methods.ridge_dual(K, y, penalty)


def _descent_cases() -> tuple[Case, ...]:
    x, z = _normal(8, 2), _normal(6, 2)
    return (
        Case((_rbf(x, x), _normal(8), 0.1, 0.5, 1), about="after one step"),
        Case((_rbf(x, x), _normal(8), 0.1, 0.5, 2), about="after two steps"),
        Case((_rbf(z, z), _normal(6), 0.3, 0.4, 15), about="after 15 steps"),
        Case((_rbf(z, z), _normal(6), 0.3, 0.4, 0), about="after no step"),
    )


DESCENT = Exercise(
    "rkhs_descent",
    cases=_descent_cases(),
    mistakes=(
        Mistake(
            "your steps follow the derivative in α, K times the gradient: the gradient in the "
            "function space is Σᵢ gᵢk(xᵢ, ·), and its coefficients gᵢ have no K in front",
            _descend(_coordinate_step),
        ),
        Mistake(
            "your steps leave the penalty out: 2λf is part of the gradient, so 2λα of the step",
            _descend(lambda alpha, K, y, penalty: 2 / len(y) * (K @ alpha - y)),
        ),
        Mistake(
            "your penalty has λα: the derivative of λ‖f‖² is 2λf",
            _descend(lambda alpha, K, y, penalty: 2 / len(y) * (K @ alpha - y) + penalty * alpha),
        ),
        Mistake(
            "your penalty has 2λKα: the coefficients of 2λf are 2λα",
            _descend(
                lambda alpha, K, y, penalty: (
                    2 / len(y) * (K @ alpha - y) + 2 * penalty * (K @ alpha)
                )
            ),
        ),
        Mistake(
            "your gradient has the sum of the squares, not their mean: 2/n stands before the "
            "f(xᵢ) − yᵢ",
            _descend(lambda alpha, K, y, penalty: 2 * (K @ alpha - y) + 2 * penalty * alpha),
        ),
        Mistake(
            "your gradient has (1/n)(f(xᵢ) − yᵢ): the derivative of the square is 2(f(xᵢ) − yᵢ)",
            _descend(lambda alpha, K, y, penalty: (K @ alpha - y) / len(y) + 2 * penalty * alpha),
        ),
        Mistake(
            "your gradient lacks the factor 2 everywhere: the derivative of a square has it",
            _descend(lambda *given: _right_step(*given) / 2),
        ),
        Mistake(
            "your residual is α − y: the values at the points are f(xᵢ) = (Kα)ᵢ",
            _descend(lambda alpha, K, y, penalty: 2 / len(y) * (alpha - y) + 2 * penalty * alpha),
        ),
        Mistake(
            "your steps go up the gradient: f ← f − η∇J(f)",
            _descend(lambda *given: -_right_step(*given)),
        ),
        Mistake("you made one step too many", _descend(_right_step, extra=1)),
        Mistake("you made one step too few", _descend(_right_step, extra=-1)),
        Mistake(
            "your α are the ridge solution: return what `steps` steps of descent reach",
            _ridge_at_once,
        ),
    ),
)


# --- support vector machine -------------------------------------------------------------------


def _machine_cases() -> tuple[Case, ...]:
    x, z = _normal(24, 2), _normal(15, 3)
    labels = np.where(x[:, 0] * x[:, 1] > 0, 1.0, -1.0)
    noisy = np.where(z[:, 0] + _normal(15) > 0.5, 1.0, -1.0)
    return (
        Case((_rbf(x, x, 0.7), labels, 1.0), about="for C = 1"),
        Case((_rbf(x, x, 0.7), labels, 10.0), about="for C = 10"),
        Case((_rbf(z, z), noisy, 0.3), about="for C = 0.3 and noisy labels"),
        Case(((z @ z.T + 1) ** 2, noisy, 0.1), about="for (x·y + 1)² and C = 0.1"),
    )


LAB = Lab(
    number="06",
    folder="lab06_kernels",
    title="Kernels",
    reference=kernel_methods,
    exercises=(
        POLYNOMIAL,
        RBF,
        GRAM,
        Exercise("negative_direction", cases=_indefinite(), judge=judge_direction),
        NORM,
        REPRESENTER,
        DUAL,
        PRIMAL,
        DESCENT,
        Exercise("svm_dual", cases=_machine_cases(), judge=judge_machine),
    ),
)
