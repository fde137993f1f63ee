"""Lab 06: cases and common mistakes of regression, descent and support vector machines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.labs import kernel_methods
from kerneltrick.labs.grader._lab import Case, Exercise, Growth, Mistake
from kerneltrick.labs.grader._lab06_machine import judge_machine
from kerneltrick.labs.grader._lab06_space import Array, normal, rbf


def _ridge_cases() -> tuple[Case, ...]:
    x, z = 1.5 * normal(8, 2), normal(12, 2)
    return (
        Case((rbf(x, x), normal(8), 0.1), about="for an RBF kernel, λ = 0.1"),
        Case((rbf(z, z, 0.5), normal(12), 0.02), about="for an RBF kernel, λ = 0.02"),
        Case((z @ z.T + 0.5 * np.eye(12), normal(12), 0.5), about="for λ = 0.5"),
    )


DUAL = Exercise(
    "ridge_dual",
    cases=_ridge_cases(),
    mistakes=(
        Mistake(
            "your α match λ on the diagonal of K: λ stands beside the mean of the squares, so the "
            "diagonal needs nλ",
            lambda K, y, penalty: np.linalg.solve(K + penalty * np.eye(len(y)), y),
        ),
        Mistake(
            "your α match λ/n on the diagonal of K: it must be nλ",
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
            "your α use the penalty λαᵀα, (K² + nλI)⁻¹Ky: ‖f‖² is αᵀKα",
            lambda K, y, penalty: np.linalg.solve(K @ K + len(y) * penalty * np.eye(len(y)), K @ y),
        ),
        Mistake(
            "your result is Kα, the fitted values: return α",
            lambda K, y, penalty: K @ np.linalg.solve(K + len(y) * penalty * np.eye(len(y)), y),
        ),
        Mistake(
            "your result is (K + nλI)y: solve the linear system instead of multiplying by the "
            "matrix",
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
        Case((normal(20, 4), normal(20), 0.1), about="for 20 points and 4 features"),
        Case((normal(15, 3), normal(15), 0.5), about="for λ = 0.5"),
        Case((normal(6, 9), normal(6), 0.2), about="for more features than points"),
    ),
    mistakes=(
        Mistake(
            "your w match λ on the diagonal of ΦᵀΦ: λ stands beside the mean of the squares, so "
            "the diagonal needs nλ",
            lambda Phi, y, penalty: _primal(Phi, Phi.T @ y, penalty * np.eye(Phi.shape[1])),
        ),
        Mistake(
            "your w match mλ on the diagonal, where m is the number of features: it must be nλ, "
            "where n is the number of points",
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
            "your w match ΦᵀΦ/n + nλI with Φᵀy/n: divide every term by n, including nλ, or none",
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
    x, z = normal(8, 2), normal(6, 2)
    return (
        Case((rbf(x, x), normal(8), 0.1, 0.5, 1), about="after one step"),
        Case((rbf(x, x), normal(8), 0.1, 0.5, 2), about="after two steps"),
        Case((rbf(z, z), normal(6), 0.3, 0.4, 15), about="after 15 steps"),
        Case((rbf(z, z), normal(6), 0.3, 0.4, 0), about="after no step"),
    )


DESCENT = Exercise(
    "rkhs_descent",
    cases=_descent_cases(),
    mistakes=(
        Mistake(
            "your steps use the derivative with respect to α, which is K times the gradient: the "
            "gradient in the function space is Σᵢ gᵢk(xᵢ, ·), and its coefficients gᵢ have no K in "
            "front",
            _descend(_coordinate_step),
        ),
        Mistake(
            "your steps leave out the penalty: the gradient contains 2λf, so the step contains 2λα",
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
            "your gradient has the sum of the squares, not their mean: the factor of f(xᵢ) − yᵢ is "
            "2/n",
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
            "your α are the ridge solution: return the result of `steps` steps of descent",
            _ridge_at_once,
        ),
    ),
)


# --- support vector machine -------------------------------------------------------------------


def _machine_cases() -> tuple[Case, ...]:
    x, z = normal(24, 2), normal(15, 3)
    labels = np.where(x[:, 0] * x[:, 1] > 0, 1.0, -1.0)
    noisy = np.where(z[:, 0] + normal(15) > 0.5, 1.0, -1.0)
    return (
        Case((rbf(x, x, 0.7), labels, 1.0), about="for C = 1"),
        Case((rbf(x, x, 0.7), labels, 10.0), about="for C = 10"),
        Case((rbf(z, z), noisy, 0.3), about="for C = 0.3 and noisy labels"),
        Case(((z @ z.T + 1) ** 2, noisy, 0.1), about="for (x·y + 1)² and C = 0.1"),
    )


MACHINE = Exercise("svm_dual", cases=_machine_cases(), judge=judge_machine)
