"""Lab 04: cases and common mistakes of the two exercises about similarities in general."""

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
    symmetry_mistakes,
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


def _sums_above(bound: float) -> Callable[[Array], Any]:
    return lambda S: np.all(np.abs(S.sum(axis=1)) > bound)


def _entries_above(bound: float) -> Callable[[Array], Any]:
    return lambda S: np.all(-bound <= S)


def _symmetric_by(tolerance: Callable[[Array], Any]) -> Callable[[Array], dict[str, bool]]:
    """The conditions with another tolerance for the symmetry."""

    def answer(S: Array) -> dict[str, bool]:
        found = quadratic_kernel.similarity_conditions(S)
        same = bool(np.all(np.abs(S - S.T) <= tolerance(S)))
        smallest, largest = spectrum(S)
        return {
            **found,
            "symmetric": same,
            "positive_semidefinite": same and smallest >= -1e-9 * largest,
        }

    return answer


CONDITIONS = Exercise(
    "similarity_conditions",
    cases=_samples(),
    mistakes=(
        Mistake(
            "positive_semidefinite is judged without a tolerance (eigenvalue ≥ 0): it rejects a "
            "singular Gram matrix, whose zero eigenvalues come out as −1e-16",
            _psd_with(without_tolerance),
        ),
        Mistake(
            "positive_semidefinite asks for eigenvalues > 0: that is positive definite. A singular "
            "Gram matrix, with more points than features, has zero eigenvalues and must pass",
            _psd_with(definite),
        ),
        Mistake(
            "positive_semidefinite is judged by the signs of the entries: only eigenvalues matter. "
            "q·k has both signs and is semi-definite; elu(q·k) + 1 is positive and is not",
            _psd_with(lambda S: symmetric(S) and np.all(S >= 0)),
        ),
        Mistake(
            "positive_semidefinite does not test the symmetry: np.linalg.eigvalsh reads only one "
            "triangle, as if every matrix were symmetric",
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
        *symmetry_mistakes("symmetric", "Sᵢⱼ", _symmetric_by),
        *(
            Mistake(
                f"finite_output compares the sums with {bound} itself: compare with 1e-9 of "
                "Σⱼ |Sᵢⱼ|, since rounding grows with the size of the numbers",
                _finite_with(_sums_above(float(bound))),
            )
            for bound in ("1e-9", "1e-8", "1e-10", "1e-12")
        ),
        *(
            Mistake(
                f"non_negative lets entries down to −{bound} pass: no entry may be below 0",
                _with("non_negative", _entries_above(float(bound))),
            )
            for bound in ("1e-6", "1e-8", "1e-9", "1e-10")
        ),
        Mistake(
            "finite_output compares the sums with exactly 0: 0.1 + 0.2 − 0.3 is 5.6e-17 in floats; "
            "compare with 1e-9 of Σⱼ |Sᵢⱼ|",
            _finite_with(lambda S: np.all(S.sum(axis=1) != 0)),
        ),
        Mistake(
            "finite_output asks only that no row is all zero: +1 and −1 are not zero, but their "
            "sum is",
            _finite_with(lambda S: np.all(np.any(S != 0, axis=1))),
        ),
        Mistake(
            "finite_output adds up the columns: query i divides by the sum of its row, Σⱼ Sᵢⱼ",
            _finite_with(lambda S: np.all(np.abs(S.sum(axis=0)) > 1e-9 * np.abs(S).sum(axis=0))),
        ),
        Mistake(
            "finite_output asks for similarities > 0: that is sufficient but not necessary. "
            "Negative similarities, or similarities of both signs, work as long as no row adds up "
            "to 0",
            _finite_with(lambda S: np.all(S > 0)),
        ),
        Mistake(
            "finite_output asks for similarities ≥ 0: that is not necessary. Negative "
            "similarities, or similarities of both signs, work as long as no row adds up to 0",
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
            "differ by more than that because of rounding",
            lambda S, phi_Q, phi_K: bool(np.max(_gap(S, phi_Q, phi_K)) <= 1e-6),
        ),
        *(
            Mistake(
                "each entry is compared with a share of itself: where Sᵢⱼ cancels to 0 only "
                "rounding is left, and no share of it is enough. Compare with 1e-6 of the largest "
                "|Sᵢⱼ|",
                lambda S, phi_Q, phi_K, t=share: bool(
                    np.all(_gap(S, phi_Q, phi_K) <= t * np.abs(S))
                ),
            )
            for share in (1e-6, 1e-5, 1e-4, 1e-3)
        ),
        *(
            Mistake(
                f"your tolerance is {share:g} of the largest |Sᵢⱼ|: it must be 1e-6 of it",
                lambda S, phi_Q, phi_K, t=share: bool(
                    np.max(_gap(S, phi_Q, phi_K)) <= t * np.max(np.abs(S))
                ),
            )
            for share in (1e-4, 1e-3, 1e-2)
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
