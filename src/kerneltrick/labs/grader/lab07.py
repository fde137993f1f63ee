"""How lab 07 is graded: the cases. Its mistakes are in lab07.txt."""

from __future__ import annotations

import numpy as np

from kerneltrick.labs import based
from kerneltrick.labs.grader._judges import judge_taylor
from kerneltrick.labs.grader._lab import Array, Case, Exercise, Given, Growth, Lab


def normal(*shape: int, seed: int, size: float = 1.0) -> Array:
    return size * np.random.default_rng([7, seed]).standard_normal(shape)


TAYLOR = Exercise(
    "taylor_feature_map",
    cases=(
        Case((normal(9, 3, seed=1),), about="for x (9, 3)"),
        Case((normal(6, 5, seed=2).astype(np.float32),), about="for x (6, 5) in float32"),
        Case((normal(2, 4, 6, seed=3),), about="for x (2, 4, 6), with a batch dimension"),
        Case((normal(4, 1, seed=4),), about="for d = 1"),
    ),
    judge=judge_taylor,
)


WEIGHTS = Exercise(
    "based_weights",
    cases=(
        Case(
            (
                normal(8, 10, seed=11, size=0.5),
                normal(10, 3, seed=12),
                normal(10, 3, seed=13),
            ),
            about="for 8 tokens, F = 10, d = 3",
        ),
        Case(
            (
                normal(12, 6, seed=14, size=0.7),
                normal(6, 4, seed=15),
                normal(6, 4, seed=16),
            ),
            about="for 12 tokens, F = 6, d = 4",
        ),
    ),
)


SIZE = Exercise(
    "state_size",
    cases=(
        Case((16, 64), about="for d = 16, 64 values"),
        Case((8, 5), about="for d = 8, 5 values"),
        Case((16, 64), {"compact": False}, about="for the full map, d = 16, 64 values"),
        Case((3, 7, False), about="for the full map, d = 3, 7 values"),
    ),
    tolerance=1e-9,
)


PHI = tuple(np.abs(normal(n, m, seed=s)) + 0.05 for n, m, s in ((7, 4, 21), (7, 4, 22)))
MORE_PHI = tuple(np.abs(normal(n, m, seed=s)) + 0.05 for n, m, s in ((10, 6, 23), (10, 6, 24)))
PAST = (normal(4, 3, seed=25), np.abs(normal(4, seed=26)) + 1.0)


def _long_case(n: int) -> Case:
    phi = np.abs(normal(n, 4, seed=27)) + 0.05
    return Case((phi, phi[::-1].copy(), normal(n, 3, seed=28)))


RECURRENT = Exercise(
    "recurrent_attention",
    cases=(
        Case((*PHI, normal(7, 3, seed=29)), about="for 7 tokens, m = 4, M = 3"),
        Case((*PHI, normal(7, 3, seed=29), PAST), about="with a state from earlier tokens"),
        Case((*MORE_PHI, normal(10, 2, seed=30)), about="for 10 tokens, m = 6, M = 2"),
        Case(
            (1e-8 * PHI[0], 1e-8 * PHI[1], normal(7, 3, seed=29)),
            about="for tiny features",
            edge=True,
        ),
        Case((-PHI[0], PHI[1], normal(7, 3, seed=29)), about="where φ(q)·Z is negative", edge=True),
    ),
    growth=Growth(_long_case, advice="Carry U and Z from token to token"),
)


RECALL = Exercise(
    "recall_accuracy",
    cases=(
        Case((Given("identity"), 12, 20, 6, 4.0, 5), about="for φ(x) = x, d = 12"),
        Case((None, 4, 24, 5, 3.0, 6), about="for softmax attention, d = 4"),
        Case(
            (Given("exp"), 6),
            {"pairs": 12, "value_width": 5, "sharpness": 6.0, "seeds": 7},
            about="for φ(x) = eˣ, d = 6",
        ),
        Case((Given("relu"), 5, 10, 8, 9.0, 7), about="for φ(x) = max(0, x), d = 5"),
        Case((None, 3, 40, 6, 5.0, 4), about="for softmax attention, d = 3"),
    ),
)


QKV = (normal(11, 3, seed=31), normal(11, 3, seed=32), normal(11, 4, seed=33))
SMALL_QKV = (normal(6, 5, seed=34), normal(6, 5, seed=35), normal(6, 2, seed=36))

OVERFLOWS = (
    "exp overflows for large scores: subtract the largest score of each row before exp, which "
    "changes nothing else"
)
HIDDEN_MAXIMUM = (
    "you subtract the largest score of all tokens, including those outside the window: if that is "
    "much larger, every weight that counts is e^(−2000) = 0, and 0/0 is NaN. Mask first, then "
    "subtract the largest score that is left"
)


def _scored(scores: list[float]) -> tuple[Array, Array, Array]:
    """Every query has these scores with the keys, exactly, also in float32."""
    n = len(scores)
    Q, K = np.zeros((n, 4)), np.zeros((n, 4))
    Q[:, 0], K[:, 0] = 2.0, scores
    return Q, K, normal(n, 3, seed=37)


WINDOW = Exercise(
    "sliding_window_attention",
    cases=(
        Case((*QKV, 4), about="for 11 tokens and window 4"),
        Case((*SMALL_QKV, 3), about="for 6 tokens and window 3"),
        Case((*SMALL_QKV, 1), about="for window 1, where every token sees itself only"),
        Case((*QKV, 20), about="for a window longer than the sequence"),
        Case((600 * QKV[0], QKV[1], QKV[2], 4), about="for large scores", not_finite=OVERFLOWS),
        Case(
            (*_scored([2000, 0, 1, 0, 2000, 1]), 2),
            about="where a token outside the window has the score 2000",
            edge=True,
            not_finite=HIDDEN_MAXIMUM,
        ),
        Case(
            (*_scored([-2000, -1999, -2001, -2000]), 2),
            about="for scores of about −2000",
            edge=True,
            not_finite="your weights are all e^(−2000) = 0, and 0/0 is NaN: subtract the largest "
            "score of each row before exp, also where it is negative",
        ),
    ),
)


WINDOWED = Exercise(
    "windowed_taylor_attention",
    cases=(
        Case((*QKV, 4), about="for 11 tokens and window 4"),
        Case((*SMALL_QKV, 2), about="for 6 tokens and window 2"),
        Case((*QKV, 20), about="for a window longer than the sequence"),
        Case(
            (*_scored([1000, 1001, 999, 1002, 1000, 1001]), 3),
            about="for scores of about 1000",
            edge=True,
            not_finite="e^t overflows for large scores: subtract the largest score c of each row, "
            "and multiply the weights 1 + t + t²/2 by e^(−c) as well, so that their "
            "ratio stays the same",
        ),
    ),
)


LAB = Lab(
    number="07",
    folder="lab07_based",
    title="Based and recurrent memory",
    reference=based,
    exercises=(TAYLOR, WEIGHTS, SIZE, RECURRENT, WINDOW, WINDOWED, RECALL),
)
