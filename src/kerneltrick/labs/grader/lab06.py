"""How lab 06 is graded: the cases. Its mistakes are in lab06.txt."""

from __future__ import annotations

import numpy as np

from kerneltrick.labs import kernel_methods
from kerneltrick.labs.grader._judges import elu_gram, judge_direction, judge_machine
from kerneltrick.labs.grader._lab import Array, Case, Exercise, Growth, Lab

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


GRAM = Exercise(
    "is_gram_matrix",
    cases=_matrices(),
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
)


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
)


def _growing(n: int) -> Case:
    rng = np.random.default_rng(n)
    return Case((rng.standard_normal((n, 5)), rng.standard_normal(n), 0.1))


PRIMAL = Exercise(
    "ridge_primal",
    cases=(
        Case((normal(20, 4), normal(20), 0.1), about="for 20 points and 4 features"),
        Case((normal(15, 3), normal(15), 0.5), about="for λ = 0.5"),
        # One feature more: with nλ in every entry ΦᵀΦ has the rank 7, and is not singular.
        Case((normal(6, 7), normal(6), 0.2), about="for more features than points"),
    ),
    growth=Growth(
        _growing,
        memory=(500, 2000),
        advice="ΦᵀΦ is m×m, ΦΦᵀ is n×n",
    ),
)


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


LAB = Lab(
    number="06",
    folder="lab06_kernels",
    title="Kernels",
    reference=kernel_methods,
    exercises=(
        POLYNOMIAL,
        RBF,
        GRAM,
        NEGATIVE,
        NORM,
        REPRESENTER,
        DUAL,
        PRIMAL,
        DESCENT,
        MACHINE,
    ),
)
