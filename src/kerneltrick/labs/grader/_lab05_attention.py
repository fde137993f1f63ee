"""Lab 05: cases and common mistakes of scaled dot products and softmax attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from kerneltrick.labs.grader._lab import Case, Exercise, Mistake
from kerneltrick.labs.grader._lab05 import (
    FUTURE_MAXIMUM,
    OVERFLOWS,
    Attend,
    normal,
    softmax_heads,
    transposed,
)
from kerneltrick.labs.grader._pieces import Array, softmax


def _moments(d: int, mq: float, sq: float, mk: float, sk: float) -> tuple[float, float, float]:
    variance = d * (sq**2 * sk**2 + mq**2 * sk**2 + mk**2 * sq**2)
    return d * mq * mk, variance, 1 / math.sqrt(variance)


def _with_variance(variance: Callable[..., float]) -> Callable[..., tuple[float, float, float]]:
    """The right mean with another variance, and the scale that follows from it."""

    def answer(d: int, mean_q: float, std_q: float, mean_k: float, std_k: float) -> Any:
        found = variance(d, mean_q, std_q, mean_k, std_k)
        return d * mean_q * mean_k, found, 1 / math.sqrt(found)

    return answer


def _with_scale(scale: Callable[[float], float]) -> Callable[..., tuple[float, float, float]]:
    """The right moments with another scale."""

    def answer(d: int, mean_q: float, std_q: float, mean_k: float, std_k: float) -> Any:
        mean, variance, _ = _moments(d, mean_q, std_q, mean_k, std_k)
        return mean, variance, scale(variance)

    return answer


MOMENTS = Exercise(
    "dot_product_moments",
    cases=(
        Case((64, 0.0, 1.0, 0.0, 1.0), about="for coordinates with mean 0 and variance 1"),
        Case((16, 0.5, 2.0, 0.5, 2.0), about="for μ = 0.5 and σ = 2"),
        Case((10, 1.0, 0.5, -2.0, 3.0), about="for q and k of different laws"),
    ),
    mistakes=(
        Mistake(
            "your variance is d·σ_q²·σ_k²: Var[XY] = Var[X]·Var[Y] holds only if both means are 0",
            _with_variance(lambda d, mq, sq, mk, sk: d * sq**2 * sk**2),
        ),
        Mistake(
            "your moments leave out the means: E[q·k] = d·μ_q·μ_k, and the variance has "
            "μ_q²·σ_k² + μ_k²·σ_q² beside σ_q²·σ_k²",
            lambda d, mq, sq, mk, sk: (0.0, d * sq**2 * sk**2, 1 / math.sqrt(d * sq**2 * sk**2)),
        ),
        Mistake(
            "your mean is 0: the mean of q·k is d·μ_q·μ_k",
            lambda *law: (0.0, *_moments(*law)[1:]),
        ),
        Mistake(
            "your moments assume μ = 0 and σ = 1 and ignore the given means and deviations",
            lambda d, mq, sq, mk, sk: (0.0, float(d), 1 / math.sqrt(d)),
        ),
        Mistake(
            "your variance covers only one coordinate: the variances of d independent terms add up",
            _with_variance(lambda d, *law: _moments(1, *law)[1]),
        ),
        Mistake(
            "your variance grows as d²: the variance of a sum of d independent terms is d times "
            "the variance of one term",
            _with_variance(lambda d, *law: d * d * _moments(1, *law)[1]),
        ),
        Mistake(
            "your variance is the sum of E[X²]E[Y²] over the coordinates: subtract E[X]²E[Y]²",
            _with_variance(lambda d, mq, sq, mk, sk: d * (sq**2 + mq**2) * (sk**2 + mk**2)),
        ),
        Mistake(
            "you used the standard deviations as variances: square them",
            _with_variance(lambda d, mq, sq, mk, sk: d * (sq * sk + mq**2 * sk + mk**2 * sq)),
        ),
        Mistake(
            "your means are in the wrong places: the terms are μ_q²·σ_k² and μ_k²·σ_q², each mean "
            "with the other deviation",
            _with_variance(
                lambda d, mq, sq, mk, sk: d * ((sq * sk) ** 2 + (mq * sq) ** 2 + (mk * sk) ** 2)
            ),
        ),
        Mistake(
            "your scale is 1/variance: Var[s·x] = s²·Var[x], so it is 1/√variance",
            _with_scale(lambda variance: 1 / variance),
        ),
        Mistake(
            "your scale is √variance, which makes the variance even larger: use 1/√variance",
            _with_scale(math.sqrt),
        ),
        Mistake(
            "your second number is the standard deviation: the variance is its square",
            lambda *law: (_moments(*law)[0], math.sqrt(_moments(*law)[1]), _moments(*law)[2]),
        ),
    ),
    tolerance=1e-6,
)


def _overflowing(Q: Array, K: Array, V: Array, causal: bool = False) -> Array:
    weights = np.exp(Q @ transposed(K) / math.sqrt(Q.shape[-1]))
    weights = np.tril(weights) if causal else weights
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True) @ V)


def _masked_after(Q: Array, K: Array, V: Array, causal: bool = False) -> Array:
    weights = softmax(Q @ transposed(K) / math.sqrt(Q.shape[-1]))
    return np.asarray((np.tril(weights) if causal else weights) @ V)


def _masked_with(mask: Callable[[Array], Array]) -> Attend:
    """Causal attention whose scores are masked in another way."""

    def answer(Q: Array, K: Array, V: Array, causal: bool = False) -> Array:
        scores = Q @ transposed(K) / math.sqrt(Q.shape[-1])
        return np.asarray(softmax(mask(scores) if causal else scores) @ V)

    return answer


def _keep(allowed: Callable[[Array], Array], hidden: float = -1e30) -> Callable[[Array], Array]:
    return lambda scores: np.where(allowed(np.ones(scores.shape[-2:])) > 0, scores, hidden)


def _scored(scores: list[float]) -> tuple[Array, Array, Array]:
    """Every query has these scores with the keys, exactly, also in float32."""
    n = len(scores)
    Q, K = np.zeros((n, 4)), np.zeros((n, 4))
    Q[:, 0], K[:, 0] = 2.0, scores
    return Q, K, normal(n, 3, seed=3)


def _future_maximum(Q: Array, K: Array, V: Array, causal: bool = False) -> Array:
    scores = Q @ transposed(K) / math.sqrt(Q.shape[-1])
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights = np.tril(weights) if causal else weights
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True) @ V)


SOFTMAX = Exercise(
    "softmax_attention",
    cases=(
        Case((normal(7, 5), normal(7, 5, seed=1), normal(7, 3)), about="for n = 7, d = 5, M = 3"),
        Case(
            (normal(6, 4), normal(6, 4, seed=1), normal(6, 4, seed=2)), about="for n = 6, d = M = 4"
        ),
        Case(
            (normal(2, 3, 6, 8), normal(2, 3, 6, 8, seed=1), normal(2, 3, 6, 5)),
            about="for batches and heads",
        ),
        Case(
            (100 * normal(6, 9), 10 * normal(6, 9, seed=1), normal(6, 9, seed=2)),
            about="for scores of about 1000",
            not_finite=OVERFLOWS,
        ),
        Case(
            (normal(8, 5), normal(8, 5, seed=1), normal(8, 3)),
            {"causal": True},
            about="with causal=True",
        ),
        Case(
            (normal(2, 6, 4), normal(2, 6, 4, seed=1), normal(2, 6, 7)),
            {"causal": True},
            about="with causal=True",
        ),
        Case(
            _scored([0, 1, 2000, 1, -3]),
            {"causal": True},
            about="with causal=True, where a later key has the score 2000",
            edge=True,
            not_finite=FUTURE_MAXIMUM,
        ),
        Case(
            _scored([-2000, -1999, -2001, -2000]),
            {"causal": True},
            about="with causal=True, for scores of about −2000",
            edge=True,
            not_finite="your weights are all exp(−2000) = 0, and 0/0 is NaN: subtract the largest "
            "score of each query before np.exp, also where it is negative",
        ),
    ),
    mistakes=(
        Mistake(
            "your output matches attention without the scale 1/√d",
            lambda Q, K, V, causal=False: softmax_heads(Q, K, V, causal, scale=1),
        ),
        Mistake(
            "your output matches attention with the scale 1/d: Var[q·k] = d, so a score is about "
            "√d in size and the scale is 1/√d",
            lambda Q, K, V, causal=False: softmax_heads(Q, K, V, causal, scale=1 / Q.shape[-1]),
        ),
        Mistake(
            "your output matches attention with the scale √d: divide by √d",
            lambda Q, K, V, causal=False: softmax_heads(
                Q, K, V, causal, scale=math.sqrt(Q.shape[-1])
            ),
        ),
        Mistake(
            "your scale is 1/√M, but M is the width of the values: d is the width of queries and "
            "keys",
            lambda Q, K, V, causal=False: softmax_heads(Q, K, V, causal, scale=V.shape[-1] ** -0.5),
        ),
        Mistake(
            "your scale is 1/√n, but n is the number of tokens: d is the width of queries and keys",
            lambda Q, K, V, causal=False: softmax_heads(Q, K, V, causal, scale=Q.shape[-2] ** -0.5),
        ),
        Mistake(
            "your softmax runs over the queries: the weights of each query over the keys, the last "
            "axis, must add up to 1",
            lambda Q, K, V, causal=False: softmax_heads(Q, K, V, causal, axis=-2),
        ),
        Mistake(
            "your softmax overflows: subtract the largest score of each query before np.exp, which "
            "changes no weight",
            _overflowing,
        ),
        Mistake(FUTURE_MAXIMUM, _future_maximum),
        Mistake(
            "with causal=True you set the scores of the future to a number such as −1000: lower "
            "scores occur, and then the future has weight. Set them to −inf",
            _masked_with(_keep(np.tril, hidden=-1000.0)),
        ),
        Mistake(
            "your output with causal=True sees the future: it uses all keys",
            lambda Q, K, V, causal=False: softmax_heads(Q, K, V),
        ),
        Mistake(
            "with causal=True you set the weights of the future to 0 after the softmax: the other "
            "weights then do not add up to 1. Set the scores to −inf before it",
            _masked_after,
        ),
        Mistake(
            "with causal=True you set the scores of the future to 0 before the softmax, and "
            "exp(0) = 1 is a weight: set them to −inf",
            _masked_with(np.tril),
        ),
        Mistake(
            "with causal=True your mask is the wrong way round: query i sees the keys j ≥ i",
            _masked_with(_keep(np.triu)),
        ),
        Mistake(
            "with causal=True your queries do not see their own key: the mask is j ≤ i, with the "
            "diagonal",
            _masked_with(_keep(lambda ones: np.tril(ones, -1))),
        ),
        Mistake(
            "with causal=True your queries do not see their own key, and the first one sees none, "
            "which gives 0/0: the mask is j ≤ i, with the diagonal",
            _masked_with(_keep(lambda ones: np.tril(ones, -1), hidden=-np.inf)),
        ),
        Mistake(
            "with causal=True your queries see one key too many: the mask is j ≤ i, not j ≤ i + 1",
            _masked_with(_keep(lambda ones: np.tril(ones, 1))),
        ),
    ),
)
