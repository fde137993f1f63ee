"""The two exercises of lab 04 about similarities in general."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.labs import quadratic_kernel
from kerneltrick.labs.grader._lab import Case, Exercise, Mistake
from kerneltrick.labs.grader._lab04_maps import features
from kerneltrick.labs.grader._semidefinite import (
    definite,
    elu_gram,
    spectrum,
    symmetric,
    without_tolerance,
)

Array = np.ndarray[Any, Any]
_RNG = np.random.default_rng([4, 0])


def _normal(*shape: int) -> Array:
    return _RNG.standard_normal(shape)


def _with(name: str, change: Callable[[Array], Any]) -> Callable[[Array], dict[str, bool]]:
    """The right conditions, but for one."""
    return lambda S: {**quadratic_kernel.similarity_conditions(S), name: bool(change(S))}


def _finite_with(change: Callable[[Array], Any]) -> Callable[[Array], dict[str, bool]]:
    return _with("finite_output", change)


def _psd_with(change: Callable[[Array], Any]) -> Callable[[Array], dict[str, bool]]:
    return _with("positive_semidefinite", change)


def _symmetric_bit_by_bit(S: Array) -> dict[str, bool]:
    found = quadratic_kernel.similarity_conditions(S)
    same = bool(np.array_equal(S, S.T))
    psd = same and found["positive_semidefinite"]
    return {**found, "symmetric": same, "positive_semidefinite": psd}


def _samples() -> tuple[Case, ...]:
    x = _normal(12, 2)
    gram = (x @ x.T + 1) ** 2
    noisy = gram * (1 + 1e-13 * _normal(12, 12))
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
    )


CONDITIONS = Exercise(
    "similarity_conditions",
    cases=_samples(),
    mistakes=(
        Mistake(
            "positive_semidefinite is judged without a tolerance (eigenvalue ≥ 0): the zero "
            "eigenvalues of a singular Gram matrix come out as −1e-16, and it is refused",
            _psd_with(without_tolerance),
        ),
        Mistake(
            "positive_semidefinite asks for eigenvalues > 0: that is positive definite; a singular "
            "Gram matrix, with more points than features, has eigenvalues 0 and must pass",
            _psd_with(definite),
        ),
        Mistake(
            "positive_semidefinite is judged by the signs of the entries: it is about "
            "eigenvalues. q·k takes both signs and is semi-definite, elu(q·k) + 1 is positive and "
            "is not",
            _psd_with(lambda S: symmetric(S) and np.all(S >= 0)),
        ),
        Mistake(
            "positive_semidefinite does not test the symmetry: np.linalg.eigvalsh looks at one "
            "triangle only and takes any matrix for a symmetric one",
            _psd_with(lambda S: np.linalg.eigvalsh(S)[0] >= -1e-9 * np.max(np.abs(S))),
        ),
        Mistake(
            "positive_semidefinite has an absolute tolerance: rounding grows with the size of the "
            "numbers. Compare with 1e-9 of the largest |eigenvalue|",
            _psd_with(lambda S: symmetric(S) and spectrum(S)[0] >= -1e-9),
        ),
        Mistake(
            "symmetric compares bit by bit: allow for rounding, 1e-9 of the largest entry",
            _symmetric_bit_by_bit,
        ),
        Mistake(
            "finite_output compares the sums with exactly 0: 0.1 + 0.2 − 0.3 is 5.6e-17 in floats; "
            "compare with 1e-9 of Σⱼ |Sᵢⱼ|",
            _finite_with(lambda S: np.all(S.sum(axis=1) != 0)),
        ),
        Mistake(
            "finite_output asks only that no row is all zero: +1 and −1 are not zero, and their "
            "sum is",
            _finite_with(lambda S: np.all(np.any(S != 0, axis=1))),
        ),
        Mistake(
            "finite_output adds up the columns: query i divides by the sum of its row, Σⱼ Sᵢⱼ",
            _finite_with(lambda S: np.all(np.abs(S.sum(axis=0)) > 1e-9 * np.abs(S).sum(axis=0))),
        ),
        Mistake(
            "finite_output asks for similarities > 0: that is sufficient and not necessary; "
            "negative ones, or of both signs, work as long as no row adds up to 0",
            _finite_with(lambda S: np.all(S > 0)),
        ),
        Mistake(
            "finite_output asks for similarities ≥ 0: that is not necessary; negative ones, or of "
            "both signs, work as long as no row adds up to 0",
            _finite_with(lambda S: np.all(S >= 0) and np.all(S.sum(axis=1) > 0)),
        ),
        Mistake(
            "non_negative asks for > 0: 0 is not negative",
            _with("non_negative", lambda S: np.all(S > 0)),
        ),
    ),
)


def _factor_cases() -> tuple[Case, ...]:
    x, y = _normal(7, 3), _normal(5, 3)
    S = (x @ y.T + 1) ** 2
    phi_x, phi_y = quadratic_kernel.quadratic_map(x), quadratic_kernel.quadratic_map(y)
    wrong_x, wrong_y = features(x, cross=1.0), features(y, cross=1.0)
    a, b = np.array([[1.0, 0.0], [0.0, 1.0]]), np.array([[1.0, 5.0], [-5.0, 1.0]])
    return (
        Case((S, phi_x, phi_y), about="for the exact map"),
        Case((S, wrong_x, wrong_y), about="for a map without √2 at the cross terms"),
        Case((np.eye(2), a, b), about="where only the diagonal agrees"),
        Case((b, a, b), about="where φ(K)φ(Q)ᵀ agrees instead"),
        Case((1e12 * S, 1e6 * phi_x, 1e6 * phi_y), about="for large numbers and an exact map"),
        Case((1e-12 * S, 1e-6 * wrong_x, 1e-6 * wrong_y), about="for small numbers, a wrong map"),
    )


def _gap(S: Array, phi_Q: Array, phi_K: Array) -> Array:
    return np.asarray(np.abs(phi_Q @ phi_K.T - S))


FACTORISES = Exercise(
    "factorises",
    cases=_factor_cases(),
    mistakes=(
        Mistake(
            "the two sides are compared bit by bit: rounding differs, allow 1e-6 of the largest "
            "|Sᵢⱼ|",
            lambda S, phi_Q, phi_K: bool(np.all(_gap(S, phi_Q, phi_K) == 0)),
        ),
        Mistake(
            "the tolerance is absolute (np.allclose has atol=1e-8): for small similarities it lets "
            "everything pass. Compare with 1e-6 of the largest |Sᵢⱼ|",
            lambda S, phi_Q, phi_K: bool(np.allclose(phi_Q @ phi_K.T, S)),
        ),
        Mistake(
            "the tolerance is 1e-6 itself, not 1e-6 of the largest |Sᵢⱼ|: large similarities "
            "differ by more from rounding alone",
            lambda S, phi_Q, phi_K: bool(np.max(_gap(S, phi_Q, phi_K)) <= 1e-6),
        ),
        Mistake(
            "only the pairs i = j are compared: Sᵢⱼ = φ(qᵢ)·φ(kⱼ) must hold for all i and j",
            lambda S, phi_Q, phi_K: bool(
                np.max(np.diagonal(_gap(S, phi_Q, phi_K))) <= 1e-6 * np.max(np.abs(S))
            ),
        ),
        Mistake(
            "your answer is True for features that do not factorise S",
            lambda S, phi_Q, phi_K: True,
        ),
    ),
)
