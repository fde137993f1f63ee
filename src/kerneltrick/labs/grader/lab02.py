"""How lab 02 is graded: the cases. Its mistakes are in lab02.txt."""

from __future__ import annotations

from typing import Any

import numpy as np

from kerneltrick.labs import kernel_trick
from kerneltrick.labs.grader._lab import Array, Case, Exercise, Given, Growth, Lab

_rng = np.random.default_rng(202)


def _tensors(n: int, d: int, width: int, dtype: Any = np.float64) -> tuple[Array, Array, Array]:
    q, k = _rng.standard_normal((2, n, d)).astype(dtype)
    return q, k, _rng.standard_normal((n, width)).astype(dtype)


_ROWS = _rng.uniform(-3, 3, (6, 4))
_BATCH = _rng.uniform(-3, 3, (2, 3, 4))


ELU_CASES = (
    Case((_ROWS,)),
    Case((_BATCH,), about="for an array (2, 3, 4)"),
    Case((np.zeros((1, 3)),), about="at 0"),
    Case((np.full((1, 2), -20, np.float32),), about="far below 0, in float32"),
    Case((np.full((1, 2), -40.0),), about="far below 0"),
    Case((np.array([[100.0, 1000.0]], np.float32),), about="for large x"),
)


_STANDARD = Exercise(
    "standard_attention_order",
    cases=(
        Case(
            (
                np.array([[1.0, 0.0], [2.0, 1.0]]),
                np.array([[1.0, 2.0], [3.0, 4.0]]),
                np.array([[1.0], [10.0]]),
            )
        ),
        Case(_tensors(7, 3, 3)),
        Case(_tensors(5, 4, 6), about="for values of another width"),
        Case(_tensors(6, 6, 6), about="for n = d"),
        Case(_tensors(40, 16, 16, np.float32), about="in float32"),
    ),
)


def _negative_sums() -> tuple[Array, Array, Array]:
    """Under φ(x) = x, the normaliser of the first two queries is negative: −6, −9, 6."""
    Q = np.array([[-1.0, 0.0], [-2.0, 1.0], [1.0, 1.0]])
    K = np.array([[1.0, 2.0], [3.0, -1.0], [2.0, -1.0]])
    return Q, K + np.array([[0.0, 1.0]]), np.array([[1.0, -4.0], [5.0, 2.0], [-3.0, 6.0]])


def _large(n: int) -> Case:
    q, k, v = np.random.default_rng(n).standard_normal((3, n, 4)).astype(np.float32)
    return Case((q, k, v, Given("exp"), True))


_LINEAR = Exercise(
    "linear_attention_order",
    cases=(
        Case((*_tensors(9, 4, 4), Given("identity"))),
        Case((*_tensors(9, 4, 4), Given("exp")), about="for the map eˣ"),
        Case((*_tensors(7, 5, 3), Given("with_square")), about="for a map with more features"),
        Case((*_tensors(9, 4, 4), Given("elu"), True), about="with normalize=True"),
        Case(
            (*_tensors(8, 3, 6), Given("with_square")),
            {"normalize": True},
            about="with normalize=True and values of another width",
        ),
        Case((*_tensors(40, 16, 16, np.float32), Given("identity")), about="in float32"),
        Case(
            (
                *(1e-8 * np.abs(x) for x in _tensors(6, 3, 3)[:2]),
                _tensors(6, 3, 3)[2],
                Given("relu"),
                True,
            ),
            about="with normalize=True, for tiny weights",
        ),
        Case(
            (*_negative_sums(), Given("identity"), True),
            about="with normalize=True, where φ(q)·Z is negative",
            edge=True,
        ),
    ),
    growth=Growth(_large, advice="Take φ(K)ᵀV first, (m, M)"),
)


def _near_zero() -> tuple[Array, Array, Array]:
    """float32 tensors of which plain np.allclose says that the two orders differ."""
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 200, 64)).astype(np.float32)
    return q, k, v


_OVERFLOW = (np.full((3, 3), 1e200), np.full((3, 3), 1e200), np.full((3, 3), 1e-300))

_VERIFY = Exercise(
    "verify_associativity",
    cases=(
        Case(_tensors(7, 3, 3)),
        Case(_tensors(20, 8, 3), about="for values of another width"),
        Case(_tensors(30, 40, 40), about="for n < d"),
        Case(_near_zero(), about="in float32, where an entry near 0 has lost digits"),
        Case((np.zeros((3, 2)), np.zeros((3, 2)), np.zeros((3, 2))), about="for zeros"),
        Case(_OVERFLOW, about="where QKᵀ overflows and KᵀV does not"),
        Case((np.full((2, 2), np.nan),) * 3, about="for NaN"),
    ),
)

LAB = Lab(
    number="02",
    folder="lab02_kernel_trick",
    title="The kernel trick",
    reference=kernel_trick,
    exercises=(
        Exercise(
            "simple_feature_map",
            entrywise=True,
            cases=(
                Case((_ROWS,)),
                Case((_BATCH,), about="for an array (2, 3, 4)"),
                Case((np.array([[-2.0, 0.0, 3.5]], np.float32),), about="in float32"),
            ),
        ),
        Exercise("elu_feature_map", cases=ELU_CASES, entrywise=True),
        _STANDARD,
        _LINEAR,
        _VERIFY,
    ),
)
