"""Lab 07: cases and common mistakes of Taylor features, their weights and the state size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.labs.grader._lab import Case, Exercise, Mistake
from kerneltrick.labs.grader._lab07 import Array, normal, normalised, taylor

# Judged by inner products. A wrong map is known by the kernel it belongs to, as a function of
# t = q·k/√d, of u = q·k, of the squares s = Σqᵢ²kᵢ²/d, and of d.

WRONG_KERNELS: tuple[tuple[str, Callable[[Array, Array, Array, int], Array]], ...] = (
    (
        "your map gives 1 + t + t²: the second-order term of the series is t²/2, so its features "
        "need the factor 1/√2",
        lambda t, u, s, d: 1 + t + t * t,
    ),
    (
        "your map gives 1 + t + t²/4: φ(q) and φ(k) both have the ½, so use 1/√2 in each",
        lambda t, u, s, d: 1 + t + t * t / 4,
    ),
    (
        "your map gives 1 + t + ¼[t² + Σq²k²/d]: each product xᵢxⱼ (i < j) stands for two equal "
        "terms, so the cross terms lack √2",
        lambda t, u, s, d: 1 + t + (t * t + s) / 4,
    ),
    (
        "your map gives 1 + t + ½[t² + Σq²k²/d]: squares and cross terms have the same factor; "
        "with each product once, the squares need 1/√2 and the cross terms 1",
        lambda t, u, s, d: 1 + t + (t * t + s) / 2,
    ),
    (
        "your map gives 1 + t + Σq²k²/2d: it has only the squares xᵢ²; t² also needs the products "
        "xᵢxⱼ of different coordinates",
        lambda t, u, s, d: 1 + t + s / 2,
    ),
    (
        "your map gives 1 + t + Σq²k²/d: it has only the squares xᵢ², and those without 1/√2; t² "
        "also needs the products xᵢxⱼ of different coordinates",
        lambda t, u, s, d: 1 + t + s,
    ),
    (
        "your map gives t + t²/2: the constant feature 1 is missing",
        lambda t, u, s, d: t + t * t / 2,
    ),
    (
        "your map gives t²/2: the constant and the linear features are missing",
        lambda t, u, s, d: t * t / 2,
    ),
    ("your map gives 1 + t: the features of second order are missing", lambda t, u, s, d: 1 + t),
    (
        "your map gives (1 + t)² = 1 + 2t + t²: that is the quadratic kernel of lab 04, not the "
        "series of e^t",
        lambda t, u, s, d: (1 + t) ** 2,
    ),
    (
        "your map uses t = q·k, without the scale: divide x by d^(1/4) first",
        lambda t, u, s, d: taylor(u),
    ),
    (
        "your map uses t = q·k/d: φ(q) and φ(k) both divide x by √d. Divide by d^(1/4), the root "
        "of √d",
        lambda t, u, s, d: taylor(u / d),
    ),
    (
        "your map gives 1 + t + (q·k)²/2: the linear features are scaled, but the products are "
        "not; scale x before you multiply",
        lambda t, u, s, d: 1 + t + u * u / 2,
    ),
    (
        "your map gives 1 + t + (q·k)²/(2√d): a product xᵢxⱼ needs the scale of both factors, "
        "1/√d, but has d^(−1/4)",
        lambda t, u, s, d: 1 + t + u * u / (2 * np.sqrt(d)),
    ),
)


def _judge_features(case: Case, answer: Any) -> str | None:
    """What is wrong with features, by their inner products."""
    x = np.asarray(case.arguments[0], dtype=np.float64)
    phi = np.asarray(answer)
    if phi.dtype.kind not in "fiu" or phi.shape[:-1] != x.shape[:-1]:
        n = " × ".join(map(str, x.shape[:-1]))
        return (
            f"φ(x) must be an array (..., n, m) of numbers: {n} rows of features for x of shape "
            f"{x.shape}, not {phi.dtype} of shape {phi.shape}"
        )
    phi, d = phi.astype(np.float64), x.shape[-1]
    found, u = phi @ phi.swapaxes(-1, -2), x @ x.swapaxes(-1, -2)
    t, s = u / np.sqrt(d), (x * x) @ (x * x).swapaxes(-1, -2) / d

    def is_gram(expected: Array) -> bool:
        tolerance = 1e-4 * np.max(np.abs(expected))
        return bool(np.allclose(found, expected, rtol=0, atol=tolerance))

    if is_gram(taylor(t)):
        return None
    for hint, kernel in WRONG_KERNELS:
        if is_gram(kernel(t, u, s, d)):
            return hint
    i, j = np.unravel_index(np.argmax(np.abs(found - taylor(t))), found.shape)[-2:]
    at = (0,) * (found.ndim - 2) + (i, j)
    return (
        f"φ(xᵢ)·φ(xⱼ) is {found[at]:.6g} for the rows i = {i}, j = {j} of x; with "
        f"t = xᵢ·xⱼ/√d = {t[at]:.6g} it must be 1 + t + t²/2 = {taylor(t)[at]:.6g}"
    )


TAYLOR = Exercise(
    "taylor_feature_map",
    cases=(
        Case((normal(9, 3, seed=1),), about="for x (9, 3)"),
        Case((normal(6, 5, seed=2).astype(np.float32),), about="for x (6, 5) in float32"),
        Case((normal(2, 4, 6, seed=3),), about="for x (2, 4, 6), with a batch dimension"),
        Case((normal(4, 1, seed=4),), about="for d = 1"),
    ),
    judge=_judge_features,
)


def _based(
    kernel: Callable[[Array], Array] = taylor,
    power: float = 0.5,
    input_width: bool = False,
    causal: bool = True,
    axis: int = 1,
) -> Callable[[Array, Array, Array], Array]:
    def answer(x: Array, W_q: Array, W_k: Array) -> Array:
        width = x.shape[1] if input_width else W_q.shape[1]
        weights = kernel((x @ W_q) @ (x @ W_k).T / width**power)
        return normalised(np.tril(weights) if causal else weights, axis)

    return answer


def _raw_based(x: Array, W_q: Array, W_k: Array) -> Array:
    return np.tril(taylor((x @ W_q) @ (x @ W_k).T / np.sqrt(W_q.shape[1])))


def _strictly_before(first_row: float) -> Callable[[Array, Array, Array], Array]:
    """Weights of j < i, and this in the first row, which has none."""

    def answer(x: Array, W_q: Array, W_k: Array) -> Array:
        weights = np.full((len(x), len(x)), first_row)
        weights[1:] = normalised(np.tril(_raw_based(x, W_q, W_k), -1)[1:])
        return weights

    return answer


NOT_ITSELF = "a token does not see itself in your weights: j ≤ i, not j < i"


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
    mistakes=(
        Mistake(
            "your scale is 1/√F, but F is the width before the projection: use 1/√d, where d is "
            "the width of q and k",
            _based(input_width=True),
        ),
        Mistake("your t is q·k/d: the scale is 1/√d", _based(power=1.0)),
        Mistake("your t is q·k, without the scale 1/√d", _based(power=0.0)),
        Mistake(
            "your rows also cover the future: the weights for j > i must be 0",
            _based(causal=False),
        ),
        Mistake(
            "you normalised before you masked the future, so rows add up to less than 1: mask "
            "first",
            lambda x, W_q, W_k: np.tril(_based(causal=False)(x, W_q, W_k)),
        ),
        Mistake(
            "the future has the weight 1: you mask t with 0 before the series, and 1 + 0 + 0 is 1. "
            "Take 1 + t + t²/2 first, then mask",
            lambda x, W_q, W_k: normalised(
                taylor(np.tril((x @ W_q) @ (x @ W_k).T / np.sqrt(W_q.shape[1])))
            ),
        ),
        Mistake("your weights are not normalised: each row must add up to 1", _raw_based),
        Mistake(
            "your columns add up to 1: a query is a row, so divide by the sum of its row",
            _based(axis=0),
        ),
        Mistake(NOT_ITSELF, _strictly_before(0.0)),
        Mistake(NOT_ITSELF, _strictly_before(np.nan)),
        Mistake(
            "your weights are those of softmax, e^t: the Taylor layer has 1 + t + t²/2",
            _based(np.exp),
        ),
        Mistake(
            "your weights use 1 + t + t²: the ½ of the second-order term is missing",
            _based(lambda t: 1 + t + t * t),
        ),
        Mistake(
            "your weights use (1 + t)²: that is the quadratic kernel, not 1 + t + t²/2",
            _based(lambda t: (1 + t) ** 2),
        ),
        Mistake(
            "your weights are e^(1+t+t²/2), normalised: leave out the softmax, because 1 + t + "
            "t²/2 replaces the exponential",
            _based(lambda t: np.exp(taylor(t))),
        ),
        Mistake(
            "your keys are projected with W_q: keys have their own projection, W_k",
            lambda x, W_q, W_k: _based()(x, W_q, W_q),
        ),
        Mistake(
            "your queries and keys are exchanged: row i must hold qᵢ·kⱼ, and q = xW_q",
            lambda x, W_q, W_k: _based()(x, W_k, W_q),
        ),
    ),
)


def _compact(d: int) -> int:
    return (d + 1) * (d + 2) // 2


SIZE = Exercise(
    "state_size",
    cases=(
        Case((16, 64), about="for d = 16, 64 values"),
        Case((8, 5), about="for d = 8, 5 values"),
        Case((16, 64), {"compact": False}, about="for the full map, d = 16, 64 values"),
        Case((3, 7, False), about="for the full map, d = 3, 7 values"),
    ),
    mistakes=(
        Mistake(
            "you counted only U: the state also holds Z, another m numbers",
            lambda d, value_width, compact=True: (
                (_compact(d) if compact else 1 + d + d * d) * value_width
            ),
        ),
        Mistake(
            "your Z is as wide as the values: Z = Σφ(k) has m numbers",
            lambda d, value_width, compact=True: (
                ((_compact(d) if compact else 1 + d + d * d) + 1) * value_width
            ),
        ),
        Mistake(
            "your count has d² features: there are also a constant and d linear features, and the "
            "compact map has each product once: (d+1)(d+2)/2 in total",
            lambda d, value_width, compact=True: d * d * (value_width + 1),
        ),
        Mistake(
            "your count of the compact map has d(d−1)/2 products: the d squares xᵢ² are features "
            "too, so m = (d+1)(d+2)/2",
            lambda d, value_width, compact=True: (
                (1 + d + (d * (d - 1) // 2 if compact else d * d)) * (value_width + 1)
            ),
        ),
        Mistake(
            "you counted only the products: φ also has a constant and d linear features",
            lambda d, value_width, compact=True: (
                (d * (d + 1) // 2 if compact else d * d) * (value_width + 1)
            ),
        ),
        Mistake(
            "your count does not depend on compact: it is always the full map, 1 + d + d²",
            lambda d, value_width, compact=True: (1 + d + d * d) * (value_width + 1),
        ),
        Mistake(
            "your count does not depend on compact: it is always the compact map, (d+1)(d+2)/2",
            lambda d, value_width, compact=True: _compact(d) * (value_width + 1),
        ),
        Mistake(
            "your count d·M + d ignores the feature map: the state has a row for each of the m "
            "features",
            lambda d, value_width, compact=True: d * (value_width + 1),
        ),
        Mistake(
            "your count is just m, the number of features: U has m rows of value_width numbers",
            lambda d, value_width, compact=True: _compact(d) if compact else 1 + d + d * d,
        ),
    ),
    tolerance=1e-9,
)
