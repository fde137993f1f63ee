"""How lab 03 is graded: the cases. Its mistakes are in lab03.txt."""

from __future__ import annotations

from typing import Any

import numpy as np

from kerneltrick.labs import feature_maps
from kerneltrick.labs.grader._lab import Array, Case, Exercise, Given, Lab
from kerneltrick.labs.grader.lab02 import ELU_CASES

_rng = np.random.default_rng(303)
_ROWS = _rng.uniform(-3, 3, (6, 4))
_BATCH = _rng.uniform(-3, 3, (2, 3, 4))
_MAP_CASES = (
    Case((_ROWS,)),
    Case((_BATCH,), about="for an array (2, 3, 4)"),
    Case((np.array([[-2.0, -0.1, 0.0, 0.5, 3.0]], np.float32),), about="in float32"),
)


_TINY = np.array([[-3e-12, -1e-12, 0.0, 2e-12, 5e-12]])
_RELU_CASES = (
    *_MAP_CASES,
    Case((-np.abs(_ROWS),), about="where every x is below 0", edge=True),
    Case((_TINY,), about="for tiny x", edge=True),
)


ELU = Exercise("elu_plus_one", cases=ELU_CASES, entrywise=True)

RELU = Exercise(
    "relu_feature_map",
    entrywise=True,
    cases=_RELU_CASES,
)

SQUARED_RELU = Exercise(
    "squared_relu_feature_map",
    entrywise=True,
    cases=_RELU_CASES,
)

EXP = Exercise(
    "exp_feature_map",
    entrywise=True,
    cases=(
        *_MAP_CASES,
        Case((np.array([[0.0, -np.inf]]),), about="at −∞"),
        Case((np.array([[-30.0, -31.0]]),), about="far below 0"),
        Case((np.array([[50.0, 80.0]]),), about="for large x", edge=True),
    ),
)


RANDOM = Exercise(
    "softmax_kernel_feature_map",
    entrywise=True,
    cases=(
        Case((_rng.standard_normal((5, 16)), _rng.standard_normal((9, 16)))),
        Case((np.zeros((2, 4)), _rng.standard_normal((16, 4))), about="for x = 0"),
        Case(
            (_rng.standard_normal((2, 5, 3)), _rng.standard_normal((4, 3))),
            about="for an array (2, 5, 3)",
        ),
        Case((_rng.standard_normal((6, 6)), _rng.standard_normal((6, 6))), about="for m = d = n"),
    ),
)


_weights_rng = np.random.default_rng([3, 3])


def _pairs(n: int, d: int, dtype: Any = np.float64) -> tuple[Array, Array]:
    q, k = _weights_rng.standard_normal((2, n, d)).astype(dtype)
    return q, k


def _no_weight() -> tuple[Array, Array]:
    """The second query has the weight 0 with every key under ReLU."""
    return np.array([[1.0, 1.0], [1.0, -1.0]]), np.array([[-1.0, 1.0], [-2.0, 3.0]])


OVERFLOWS = (
    "your softmax overflows: subtract the largest score of each row before np.exp, which changes "
    "no weight"
)
_WEIGHT_CASES = (
    Case((*_pairs(7, 4), Given("exp"))),
    Case((*_pairs(6, 3), Given("with_square")), about="for a map with more features"),
    Case((*_pairs(5, 5), Given("elu")), about="for n = d"),
    Case(
        (_weights_rng.standard_normal((4, 3)), _weights_rng.standard_normal((9, 3)), Given("elu")),
        about="for more keys than queries",
    ),
    Case((*(1e-9 * np.abs(x) for x in _pairs(5, 3)), Given("relu")), about="for tiny weights"),
)
_BOTH_SIGNS = (np.array([[1.0, 2], [-1, 3], [2, -1]]), np.array([[1.0, 0], [0, 1], [3, -1]]))


IMPLIED = Exercise(
    "compute_implicit_attention",
    cases=(
        *_WEIGHT_CASES,
        Case((np.eye(3), np.eye(3), Given("relu")), about="where some weights are 0"),
        Case((*_BOTH_SIGNS, Given("identity")), about="where some weights are negative"),
        Case(
            (*_no_weight(), Given("relu")),
            raises=ZeroDivisionError,
            about="for a query without weight",
        ),
    ),
)


_implied = feature_maps.compute_implicit_attention
SHOW = Exercise(
    "show_attention",
    cases=(
        Case((_implied(*_pairs(6, 4), np.exp),)),
        Case((np.eye(3),), about="where weights are 0"),
        Case(
            (_implied(*_BOTH_SIGNS, lambda x: x),),
            about="where weights are negative",
        ),
        Case(
            (_implied(*_pairs(9, 4), np.exp)[:4],),
            about="for more keys than queries",
        ),
        Case((np.ones((1, 1)),), about="for one token"),
    ),
    returns=False,
)


COMPARE = Exercise(
    "compare_to_softmax",
    cases=(
        Case((*_pairs(8, 5), Given("exp"))),
        Case((*_pairs(7, 4), Given("with_square")), about="for a map with more features"),
        Case((*_pairs(6, 3), Given("elu"), 1.0), about="with scale=1"),
        Case((*_pairs(6, 3), Given("exp")), {"scale": 0.01}, about="with scale=0.01"),
        Case((*_pairs(9, 16), Given("elu")), about="for d = 16"),
        Case(
            (*_pairs(6, 3), Given("elu"), 2000.0),
            about="for large scores",
            not_finite=OVERFLOWS,
            edge=True,
        ),
        Case(
            (*_no_weight(), Given("relu")),
            raises=ZeroDivisionError,
            about="for a query without weight",
        ),
    ),
    tolerance=1e-3,
)


# Fewer tokens than features, so that every matrix of weights is regular: np.linalg.cond of a
# singular one, a common mistake, is a rounding error that differs from one CPU to another.
_SIGNED = _weights_rng.standard_normal((3, 4, 6))

QUALITY = Exercise(
    "analyze_feature_map_quality",
    cases=(
        Case((Given("exp"), *_weights_rng.standard_normal((3, 5, 8)))),
        Case(
            (Given("with_square"), *_pairs(7, 4), _weights_rng.standard_normal((7, 3))),
            about="for values of another width",
        ),
        Case(
            (Given("identity"), *_SIGNED),
            about="for a map whose weights can be negative",
        ),
        Case(
            (Given("identity"), -_SIGNED[0], *_SIGNED[1:]),
            about="where the row that cancels most has a negative sum",
            edge=True,
        ),
        Case(
            (Given("elu"), *(30 * x for x in _pairs(3, 6)), _weights_rng.standard_normal((3, 2))),
            about="for large scores",
            not_finite=OVERFLOWS,
            edge=True,
        ),
        Case(
            (Given("relu"), *_no_weight(), np.eye(2)),
            raises=ZeroDivisionError,
            about="for a query without weight",
        ),
    ),
    tolerance=1e-3,
)


LAB = Lab(
    number="03",
    folder="lab03_feature_maps",
    title="Feature maps",
    reference=feature_maps,
    exercises=(ELU, RELU, SQUARED_RELU, EXP, RANDOM, IMPLIED, SHOW, COMPARE, QUALITY),
)
