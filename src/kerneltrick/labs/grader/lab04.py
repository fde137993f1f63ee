"""How lab 04 is graded: the cases. Its mistakes are in lab04.txt."""

from __future__ import annotations

import numpy as np

from kerneltrick.labs import quadratic_kernel
from kerneltrick.labs.grader._judges import elu_gram, features, judge_quadratic, judge_square
from kerneltrick.labs.grader._lab import Array, Case, Exercise, Growth, Lab

_SAMPLES = np.random.default_rng([4, 0])


def _sampled(*shape: int) -> Array:
    return _SAMPLES.standard_normal(shape)


def _samples() -> tuple[Case, ...]:
    x = _sampled(12, 2)
    gram = (x @ x.T + 1) ** 2
    noisy = gram * (1 + 1e-13 * _sampled(12, 12))
    return (
        Case((gram,), about="for (q·k + 1)² on 12 points, a singular Gram matrix"),
        Case((x[:6] @ x[:6].T,), about="for q·k, which takes both signs"),
        Case((elu_gram(),), about="for elu(q·k) + 1 on the points ±1, ±2"),
        Case((-gram - 1,), about="for a similarity that is negative everywhere"),
        Case((np.array([[2.0, 3.0], [1.0, 2.0]]),), about="for a sample that is not symmetric"),
        Case((np.array([[1.0, -1.0], [-1.0, 1.0]]),), about="for rows that cancel to 0"),
        Case((np.array([[1.0, 2.0], [-1.0, -2.0]]),), about="for columns that cancel, not rows"),
        Case(
            (np.array([[0.1, 0.2, -0.3], [0.2, 1.0, 0.0], [-0.3, 0.0, 2.0]]),),
            about="for 0.1 + 0.2 − 0.3, which is 0 but for rounding",
        ),
        Case((np.diag([2.0, 1.0, 0.0]),), about="for a row of zeros"),
        Case((np.diag([2.0, 1.0]),), about="for similarities of which some are 0"),
        Case((noisy,), about="for a Gram matrix that is symmetric but for rounding"),
        Case((1e9 * gram,), about="for large numbers"),
        Case((1e-12 * elu_gram(),), about="for small numbers"),
        Case(
            (1e9 * np.array([[0.1, 0.2, -0.3], [0.2, 1.0, 0.0], [-0.3, 0.0, 2.0]]),),
            about="for large numbers that cancel but for rounding",
            edge=True,
        ),
        Case(
            (1e-12 * np.array([[2.0, -3.0], [-1.0, 2.0]]),),
            about="for small numbers that are negative, and not symmetric",
            edge=True,
        ),
        Case(
            (np.array([[2.0, 1e-12, 1.0], [0.0, 1.0, 0.0], [1.0, 1e-13, 3.0]]),),
            about="for entries that are 0 but for rounding",
            edge=True,
        ),
    )


CONDITIONS = Exercise(
    "similarity_conditions",
    cases=_samples(),
)


def _factor_cases() -> tuple[Case, ...]:
    x, y = _sampled(7, 3), _sampled(5, 3)
    S = (x @ y.T + 1) ** 2
    phi_x, phi_y = quadratic_kernel.quadratic_map(x), quadratic_kernel.quadratic_map(y)
    wrong_x, wrong_y = features(x, cross=1.0), features(y, cross=1.0)
    a, b = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 5.0], [-5.0, 1.0]])
    return (
        Case((S, phi_x, phi_y), about="for the exact map"),
        Case((S, wrong_x, wrong_y), about="for a map without √2 at the cross terms"),
        Case((np.eye(2), a, b), about="where only the diagonal agrees"),
        Case((b, a, b), about="where φ(K)φ(Q)ᵀ agrees, but not φ(Q)φ(K)ᵀ"),
        Case((1e12 * S, 1e6 * phi_x, 1e6 * phi_y), about="for large numbers and an exact map"),
        Case((1e-12 * S, 1e-6 * wrong_x, 1e-6 * wrong_y), about="for small numbers, a wrong map"),
        Case(_cancelling(), about="for an exact map, where an entry cancels to 0", edge=True),
        Case(
            (b + 1e-4, a, b.T), about="where every entry differs by 2e-5 of the largest", edge=True
        ),
    )


def _cancelling() -> tuple[Array, Array, Array]:
    """(q·k + 1)² with q·k = −1 but for rounding in places: the map gives 1e-16 there, not 0."""
    x, y = np.array([[0.1, 0.7], [0.3, -1.1]]), np.array([[-0.6, 0.0], [2.0, 1.0], [0.0, 0.0]])
    y[0, 1] = (-1 - x[0, 0] * y[0, 0]) / x[0, 1]
    y[2, 0], y[2, 1] = 0.4, (-1 - 0.4 * x[1, 0]) / x[1, 1]
    return (x @ y.T + 1) ** 2, features(x), features(y)


FACTORISES = Exercise(
    "factorises",
    cases=_factor_cases(),
)


_RNG = np.random.default_rng([4, 1])


def _normal(*shape: int) -> Array:
    return _RNG.standard_normal(shape)


# --- the kernel and its maps ------------------------------------------------------------------

KERNEL = Exercise(
    "quadratic_kernel",
    cases=(
        Case((_normal(5, 3), _normal(7, 3))),
        Case((_normal(4, 2), _normal(4, 2)), {"constant": 0.5}, about="for constant=0.5"),
        Case((_normal(3, 4), _normal(6, 4)), {"constant": 0.0}, about="for constant=0, (q·k)²"),
        Case((_normal(5, 1), _normal(2, 1)), {"constant": 3.0}, about="for constant=3, d = 1"),
    ),
)

MAP_CASES = (
    Case((_normal(12, 3),)),
    Case((_normal(20, 5),), about="for d = 5"),
    Case((_normal(6, 2),), about="for d = 2"),
    Case((_normal(4, 1),), about="for d = 1, without cross terms"),
)


# --- attention --------------------------------------------------------------------------------


def _tokens(n: int, d: int, width: int, keys: int | None = None) -> tuple[Array, Array, Array]:
    keys = n if keys is None else keys
    return _normal(n, d), _normal(keys, d), _normal(keys, width)


def _tiny_similarities() -> tuple[Array, Array, Array]:
    """q·k + 1 is 2⁻²² times 1, 2, 3, 4: exact, also in float32."""
    K = 1 - 2.0**-22 * np.arange(1.0, 5.0)[:, None]
    return np.array([[-1.0]]), K, np.array([[4.0, 1.0], [-2.0, 3.0], [5.0, 0.0], [1.0, -6.0]])


BY_KERNEL = Exercise(
    "attention_by_kernel",
    cases=(
        Case(_tokens(8, 3, 3)),
        Case(_tokens(6, 2, 5), about="for values of another width"),
        Case(_tokens(5, 4, 2, keys=9), about="for more keys than queries"),
        Case(_tiny_similarities(), about="for similarities of about 1e-12", edge=True),
        Case(
            (np.array([[2.0], [1.0]]), np.array([[-1.0], [-1.0]]), np.array([[3.0], [4.0]])),
            about="for a query with q·k = −1 for every key",
            raises=ZeroDivisionError,
        ),
    ),
)


def _growing(n: int) -> Case:
    Q, K, V = quadratic_kernel.random_inputs(n, d=3, width=4)
    return Case((Q, K, V))


BY_FEATURES = Exercise(
    "attention_by_features",
    cases=(
        Case(_tokens(10, 3, 3)),
        Case(_tokens(7, 2, 5), about="for values of another width"),
        Case(_tokens(5, 4, 2, keys=12), about="for more keys than queries"),
        Case(_tokens(6, 1, 3), about="for d = 1"),
    ),
    growth=Growth(
        _growing,
        advice="Take φ(K)ᵀV first, (m, M)",
    ),
)


CAUSAL = Exercise(
    "causal_attention_by_features",
    cases=(
        Case(_tokens(9, 3, 3)),
        Case(_tokens(7, 2, 5), about="for values of another width"),
        Case(_tokens(8, 1, 2), about="for d = 1"),
        Case(_tokens(1, 3, 2), about="for one token"),
    ),
    growth=Growth(
        _growing,
        advice="Carry U and Z from token to token",
    ),
)


# --- costs ------------------------------------------------------------------------------------


COUNT = Exercise(
    "quadratic_multiply_adds",
    cases=tuple(Case(sizes) for sizes in ((1000, 32, 80), (7, 3, 3), (4096, 64, 64), (50, 1, 5))),
    tolerance=1e-9,
)

CROSSOVER = Exercise(
    "crossover",
    cases=tuple(Case(sizes) for sizes in ((32, 80), (16, 16), (64, 8), (3, 100), (1, 1))),
    tolerance=1e-9,
)

LAB = Lab(
    number="04",
    folder="lab04_quadratic_kernel",
    title="The quadratic kernel",
    reference=quadratic_kernel,
    exercises=(
        CONDITIONS,
        FACTORISES,
        KERNEL,
        Exercise("square_map", cases=MAP_CASES, judge=judge_square),
        Exercise("quadratic_map", cases=MAP_CASES, judge=judge_quadratic),
        BY_KERNEL,
        BY_FEATURES,
        CAUSAL,
        COUNT,
        CROSSOVER,
    ),
)
