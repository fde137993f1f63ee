"""Lab 07: cases and common mistakes of a sliding window, alone and with a state."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kerneltrick.labs.grader._lab import Case, Exercise, Mistake
from kerneltrick.labs.grader._lab07 import (
    Array,
    ages,
    normal,
    normalised,
    scaled_scores,
    softmax,
    taylor,
)


def _window(
    kept: Callable[[Array, int], Array] = lambda age, window: (age >= 0) & (age < window),
    power: float = 0.5,
    masked: float = -np.inf,
    axis: int = 1,
) -> Callable[..., Array]:
    def answer(Q: Array, K: Array, V: Array, window: int) -> Array:
        inside = kept(ages(len(V)), window)
        return np.asarray(softmax(scaled_scores(Q, K, power), inside, masked, axis) @ V)

    return answer


def _masked_late(Q: Array, K: Array, V: Array, window: int) -> Array:
    age = ages(len(V))
    weights = softmax(scaled_scores(Q, K), np.isfinite(age))
    return np.asarray(np.where((age >= 0) & (age < window), weights, 0) @ V)


def _overflows(Q: Array, K: Array, V: Array, window: int) -> Array:
    age = ages(len(V))
    weights = np.where((age >= 0) & (age < window), np.exp(scaled_scores(Q, K)), 0)
    return np.asarray(normalised(weights) @ V)


def _not_itself(Q: Array, K: Array, V: Array, window: int) -> Array:
    output = np.zeros((len(Q), V.shape[1]))
    for i in range(1, len(Q)):
        first = max(0, i - window)
        output[i] = softmax(scaled_scores(Q[i : i + 1], K[first:i]), np.array(True))[0] @ V[first:i]
    return output


def _blocks(n: int, window: int) -> Array:
    i = np.arange(n)
    return np.asarray((i[:, None] // window == i // window) & (ages(n) >= 0))


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


def _hidden_maximum(Q: Array, K: Array, V: Array, window: int) -> Array:
    age, t = ages(len(V)), scaled_scores(Q, K)
    weights = np.exp(t - t.max(axis=1, keepdims=True))
    return np.asarray(normalised(np.where((age >= 0) & (age < window), weights, 0)) @ V)


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
    mistakes=(
        Mistake(
            "your window is one token too long: the last `window` tokens, including the current "
            "one, are i − window < j ≤ i",
            _window(lambda age, window: (age >= 0) & (age <= window)),
        ),
        Mistake(
            "your window is one token too short: it has `window` tokens, including the current one",
            _window(lambda age, window: (age >= 0) & (age < max(window - 1, 1))),
        ),
        Mistake(
            "your window reaches into the future: |i − j| < window is not causal, j ≤ i is missing",
            _window(lambda age, window: np.abs(age) < window),
        ),
        Mistake(
            "your window lies in the future: you keep i ≤ j < i + window; check which index is the "
            "query",
            _window(lambda age, window: (age <= 0) & (-age < window)),
        ),
        Mistake(
            "every token sees the whole past: your output is causal softmax attention without the "
            "window",
            _window(lambda age, window: age >= 0),
        ),
        Mistake(
            "your mask has no effect: the output is softmax attention to all tokens",
            _window(lambda age, window: np.isfinite(age)),
        ),
        Mistake(
            "the masked scores are 0 in your softmax, and e⁰ = 1 is a weight: they must be −inf, "
            "or their weights 0",
            _window(masked=0.0),
        ),
        Mistake(
            "you masked after the softmax over all tokens, so the weights of a row add up to less "
            "than 1: mask the scores before the softmax",
            _masked_late,
        ),
        Mistake(
            "your softmax runs over the queries (axis 0): each row of weights must add up to 1",
            _window(axis=0),
        ),
        Mistake("your scores are q·k, without the scale 1/√d", _window(power=0.0)),
        Mistake("your scores are q·k/d: the scale is 1/√d", _window(power=1.0)),
        Mistake(
            "a token does not see itself: your window ends at i − 1, but it must end at i",
            _not_itself,
        ),
        Mistake(OVERFLOWS, _overflows),
        Mistake(HIDDEN_MAXIMUM, _hidden_maximum),
        Mistake(
            "the masked scores are a number such as −1000 in your softmax: lower scores occur, and "
            "then the masked tokens have weight. They must be −inf, or their weights 0",
            _window(masked=-1000.0),
        ),
        Mistake(
            "your windows are blocks that do not overlap: every token has its own window that ends "
            "at this token",
            lambda Q, K, V, window: softmax(scaled_scores(Q, K), _blocks(len(V), window)) @ V,
        ),
    ),
)


def _windowed(
    split: Callable[[Array, int], tuple[Array, Array]] = lambda age, window: (
        age >= window,
        (age >= 0) & (age < window),
    ),
    far: Callable[[Array], Array] = taylor,
    powers: tuple[float, float] = (0.5, 0.5),
) -> Callable[..., Array]:
    """`split` says which keys are in the state and which in the window; exp never overflows."""

    def answer(Q: Array, K: Array, V: Array, window: int) -> Array:
        in_state, in_window = split(ages(len(V)), window)
        t = scaled_scores(Q, K, powers[1])
        largest = np.where(in_window, t, 0).max(axis=1, keepdims=True)
        exact = np.exp(np.where(in_window, t, -np.inf) - largest)
        before = np.where(in_state, far(scaled_scores(Q, K, powers[0])), 0) * np.exp(-largest)
        return np.asarray(normalised(exact + before) @ V)

    return answer


def _two_outputs(all_past: bool, factor: float) -> Callable[..., Array]:
    """Each part normalised alone; the state holds all of the past or what is before the window."""

    def answer(Q: Array, K: Array, V: Array, window: int) -> Array:
        age = ages(len(V))
        near = _window()(Q, K, V, window)
        weights = np.where(age >= (0 if all_past else window), taylor(scaled_scores(Q, K)), 0)
        total = weights.sum(axis=1, keepdims=True)
        both = near + np.divide(weights @ V, total, out=np.zeros_like(near), where=total != 0)
        return np.where(total != 0, factor * both, near)

    return answer


def _shifted_window(Q: Array, K: Array, V: Array, window: int) -> Array:
    age, t = ages(len(V)), scaled_scores(Q, K)
    inside = np.where((age >= 0) & (age < window), t, -np.inf)
    exact = np.exp(inside - inside.max(axis=1, keepdims=True))
    return np.asarray(normalised(exact + np.where(age >= window, taylor(t), 0)) @ V)


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
    mistakes=(
        Mistake(
            "the tokens in the window count twice, with e^t and with 1 + t + t²/2: the state must "
            "end where the window begins, at j ≤ i − window",
            _windowed(lambda age, window: (age >= 0, (age >= 0) & (age < window))),
        ),
        Mistake(
            "you average two outputs, each with its own normaliser: use one sum of all weights, "
            "over window and state together",
            _two_outputs(False, 0.5),
        ),
        Mistake(
            "you average the output of the window and the output of the whole past: use one sum of "
            "all weights, in which each token counts once",
            _two_outputs(True, 0.5),
        ),
        Mistake(
            "you add two outputs, each with its own normaliser: use one sum of all weights, over "
            "window and state together",
            _two_outputs(False, 1.0),
        ),
        Mistake(
            "you add the output of the window and the output of the whole past: use one sum of all "
            "weights, in which each token counts once",
            _two_outputs(True, 1.0),
        ),
        Mistake(
            "you subtract the largest score inside the window only: then e^(t − c) and 1 + t + "
            "t²/2 are on different scales; multiply the second by e^(−c) as well",
            _shifted_window,
        ),
        Mistake(
            "the token j = i − window is in neither part: the window ends before it, so the state "
            "must begin with it",
            _windowed(lambda age, window: (age > window, (age >= 0) & (age < window))),
        ),
        Mistake(
            "the token j = i − window is in both parts: the window is one too long",
            _windowed(lambda age, window: (age >= window, (age >= 0) & (age <= window))),
        ),
        Mistake(
            "your window is one token too long: it has `window` tokens, including the current one",
            _windowed(lambda age, window: (age > window, (age >= 0) & (age <= window))),
        ),
        Mistake(
            "your output uses only the window: the tokens before it are missing",
            _windowed(lambda age, window: (age > len(age), (age >= 0) & (age < window))),
        ),
        Mistake(
            "all your weights are 1 + t + t²/2: inside the window they are e^t",
            _windowed(lambda age, window: (age >= 0, age > len(age))),
        ),
        Mistake(
            "all your weights are e^t: before the window they are 1 + t + t²/2",
            _windowed(lambda age, window: (age > len(age), age >= 0)),
        ),
        Mistake(
            "the two kinds of weights are swapped: e^t belongs inside the window",
            _windowed(lambda age, window: ((age >= 0) & (age < window), age >= window)),
        ),
        Mistake(
            "the future has weights too: the condition j ≤ i is missing",
            _windowed(lambda age, window: (np.abs(age) >= window, np.abs(age) < window)),
        ),
        Mistake(
            "before the window your weights are 1 + t + t²: the ½ is missing",
            _windowed(far=lambda t: 1 + t + t * t),
        ),
        Mistake(
            "before the window your t is q·k, without the scale: both kinds of weights have "
            "t = q·k/√d",
            _windowed(powers=(0.0, 0.5)),
        ),
        Mistake("your t is q·k everywhere, without the scale 1/√d", _windowed(powers=(0.0, 0.0))),
    ),
)
