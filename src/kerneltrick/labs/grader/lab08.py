"""How lab 08 is graded: the cases. Its mistakes are in lab08.txt."""

from __future__ import annotations

import numpy as np

from kerneltrick.labs import delta_rule
from kerneltrick.labs.grader._lab import Array, Case, Exercise, Growth, Lab

_rng = np.random.default_rng([8, 8])


def _tokens(n: int, d: int, width: int) -> tuple[Array, Array, Array]:
    """Q, K and V, with keys that are not of length 1."""
    q, k = _rng.standard_normal((2, n, d))
    k *= _rng.uniform(0.6, 1.2, (n, 1)) / np.linalg.norm(k, axis=1, keepdims=True)
    return q, k, _rng.standard_normal((n, width))


def _beta(n: int) -> Array:
    return _rng.uniform(0.2, 1.8, n)


def _decay(n: int) -> Array:
    return _rng.uniform(0.5, 0.95, n)


def _same_key() -> tuple[Array, Array, Array]:
    """The same key three times, with three values."""
    key = np.array([[0.6, 0.8]] * 3)
    return key, key, np.array([[1.0, 2.0], [5.0, -1.0], [0.0, 4.0]])


def _long(n: int) -> Case:
    return Case((*delta_rule.random_tokens(n, d=4, width=3), 10))


RECURRENT = Exercise(
    "recurrent_attention",
    cases=(
        Case(_same_key(), about="for a key that comes three times"),
        Case(_tokens(7, 3, 4), about="for 7 tokens, d = 3, M = 4"),
        Case(_tokens(9, 4, 4), about="for 9 tokens, d = M = 4"),
        Case(_tokens(1, 3, 2), about="for one token"),
    ),
)

DECAYED = Exercise(
    "decayed_attention",
    cases=(
        Case((*_same_key(), np.array([0.5, 0.25, 0.75])), about="for a key that comes three times"),
        Case((*_tokens(7, 3, 4), _decay(7)), about="for 7 tokens, d = 3, M = 4"),
        Case((*_tokens(9, 4, 4), _decay(9)), about="for 9 tokens, d = M = 4"),
    ),
)

DELTA = Exercise(
    "delta_rule",
    cases=(
        Case((*_same_key(), np.ones(3)), about="for a key that comes three times, β = 1"),
        Case((*_same_key(), np.full(3, 0.5)), about="for a key that comes three times, β = ½"),
        Case((*_tokens(8, 3, 4), _beta(8)), about="for 8 tokens, d = 3, M = 4"),
        Case((*_tokens(9, 4, 4), _beta(9)), about="for 9 tokens, d = M = 4"),
        Case(
            (*_tokens(6, 3, 2), _beta(6), _rng.standard_normal((3, 2))),
            about="with a state from earlier tokens",
        ),
    ),
)

GATED = Exercise(
    "gated_delta_rule",
    cases=(
        Case(
            (*_same_key(), np.ones(3), np.array([0.5, 0.25, 0.75])),
            about="for a key that comes three times",
        ),
        Case((*_tokens(8, 3, 4), _beta(8), _decay(8)), about="for 8 tokens, d = 3, M = 4"),
        Case((*_tokens(9, 4, 4), _beta(9), _decay(9)), about="for 9 tokens, d = M = 4"),
    ),
)

WRITTEN = Exercise(
    "written_values",
    cases=(
        Case((*_same_key()[1:], np.ones(3)), about="for a key that comes three times"),
        Case((*_tokens(8, 3, 4)[1:], _beta(8)), about="for 8 tokens, d = 3, M = 4"),
        Case((*_tokens(12, 4, 2)[1:], _beta(12)), about="for 12 tokens, d = 4, M = 2"),
    ),
)

CHUNKED = Exercise(
    "chunked_delta_rule",
    cases=(
        Case((*_tokens(12, 3, 4), _beta(12), 4), about="for 12 tokens in chunks of 4"),
        Case((*_tokens(11, 4, 2), _beta(11), 4), about="for 11 tokens in chunks of 4"),
        Case((*_tokens(6, 3, 3), _beta(6), 1), about="for chunks of one token"),
        Case((*_tokens(7, 3, 3), _beta(7)), about="for one chunk that is longer than the sequence"),
    ),
    growth=Growth(_long, advice="Carry S from chunk to chunk"),
)

ATTENTION = Exercise(
    "delta_attention",
    cases=(
        Case((*_same_key()[:2], np.ones(3)), about="for a key that comes three times"),
        Case((*_tokens(8, 3, 1)[:2], _beta(8)), about="for 8 tokens, d = 3"),
        Case((*_tokens(6, 5, 1)[:2], _beta(6)), about="for 6 tokens, d = 5"),
    ),
)

PARITY = Exercise(
    "parity",
    cases=(
        Case((np.array([1, 0, 1, 1, 0, 0, 1]),), about="for 1 0 1 1 0 0 1"),
        Case((_rng.integers(0, 2, 40),), about="for 40 bits"),
        Case((np.zeros(5, dtype=int),), about="for zeros"),
    ),
)

LAB = Lab(
    number="08",
    folder="lab08_delta_rule",
    title="A state that corrects itself",
    reference=delta_rule,
    exercises=(RECURRENT, DECAYED, DELTA, GATED, WRITTEN, CHUNKED, ATTENTION, PARITY),
)
