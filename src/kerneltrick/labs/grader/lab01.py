"""How lab 01 is graded."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kerneltrick.labs import complexity
from kerneltrick.labs.grader._lab import Case, Exercise, Lab, Mistake

EXACT = 1e-9  # counts are whole numbers; floats that hold them exactly pass


def _pairs(n: int, causal: bool) -> int:
    return n * (n + 1) // 2 if causal else n * n


def _size(dtype: str) -> int:
    return np.dtype(dtype).itemsize


SOFTMAX_COUNT = Exercise(
    "softmax_multiply_adds",
    cases=(
        Case((1000, 32, 80), about="for n = 1000, D = 32, M = 80"),
        Case((4096, 64, 64), about="for n = 4096 and D = M = 64"),
        Case((10, 3, 4), {"causal": True}, about="with causal=True"),
        Case((1000, 32, 80), {"causal": True}, about="with causal=True"),
        Case((1, 5, 2), about="for a single token"),
    ),
    mistakes=(
        Mistake(
            "you counted only QKᵀ, n²·D: the weights times V take another n²·M",
            lambda n, D, M, causal=False: _pairs(n, causal) * D,
        ),
        Mistake(
            "you counted both products with the width D of the keys: the second one uses the width "
            "M of the values",
            lambda n, D, M, causal=False: _pairs(n, causal) * 2 * D,
        ),
        Mistake(
            "you counted floating-point operations, two per multiply-add: a multiplication and the "
            "addition that follows it count as one",
            lambda n, D, M, causal=False: 2 * _pairs(n, causal) * (D + M),
        ),
        Mistake(
            "your count is n²·D·M: the two products are computed one after the other, so add their "
            "counts instead of multiplying them",
            lambda n, D, M, causal=False: _pairs(n, causal) * D * M,
        ),
        Mistake(
            "with causal=True you counted n²/2 pairs: a token also sees itself, which makes "
            "n(n+1)/2",
            lambda n, D, M, causal=False: n * n * (D + M) // (2 if causal else 1),
        ),
        Mistake(
            "with causal=True you counted n(n−1)/2 pairs: the diagonal is missing, because token i "
            "also sees its own key",
            lambda n, D, M, causal=False: (n * (n - 1) // 2 if causal else n * n) * (D + M),
        ),
        Mistake(
            "with causal=True you counted all n² pairs: only the pairs with j ≤ i count",
            lambda n, D, M, causal=False: n * n * (D + M),
        ),
        Mistake(
            "with causal=True you counted the scores of all n² pairs but the product with V only "
            "for j ≤ i: the scores of the future are not needed either",
            lambda n, D, M, causal=False: n * n * D + _pairs(n, causal) * M,
        ),
    ),
    tolerance=EXACT,
)

LINEAR_COUNT = Exercise(
    "linear_multiply_adds",
    cases=(
        Case((1000, 561, 80), about="for n = 1000, m = 561, M = 80"),
        Case((4096, 64, 64), about="for n = 4096 and m = M = 64"),
        Case((10, 7, 3), {"causal": True}, about="with causal=True"),
        Case((1000, 48, 16), {"causal": True}, about="with causal=True"),
    ),
    mistakes=(
        Mistake(
            "you halved the count for causal=True: the state is updated and read once for each "
            "token, causal or not, so the count is the same",
            lambda n, m, M, causal=False: 2 * n * m * (M + 1) // (2 if causal else 1),
        ),
        Mistake(
            "with causal=True you rebuild U and Z for each token from all earlier keys: carry them "
            "along and add one key",
            lambda n, m, M, causal=False: (
                (_pairs(n, True) if causal else n) * m * (M + 1) + n * m * (M + 1)
            ),
        ),
        Mistake(
            "your count leaves out the normaliser: Z = Σφ(k) takes n·m and φ(q)·Z takes n·m",
            lambda n, m, M, causal=False: 2 * n * m * M,
        ),
        Mistake(
            "you counted the normaliser once: computing Z takes n·m, and reading it, φ(q)·Z, takes "
            "another n·m",
            lambda n, m, M, causal=False: 2 * n * m * M + n * m,
        ),
        Mistake(
            "your count, n·m·M, covers one product: computing U takes n·m·M, and reading U takes "
            "as many again; the normaliser is missing too",
            lambda n, m, M, causal=False: n * m * M,
        ),
        Mistake(
            "you counted one of two passes: the keys build U and Z, and the queries then read "
            "them, which takes as many multiply-adds again",
            lambda n, m, M, causal=False: n * m * (M + 1),
        ),
        Mistake(
            "you counted floating-point operations, two per multiply-add: a multiplication and the "
            "addition that follows it count as one",
            lambda n, m, M, causal=False: 4 * n * m * (M + 1),
        ),
        Mistake(
            "your count grows as n²: you counted the n×n weights φ(Q)φ(K)ᵀ, which linear attention "
            "never forms",
            lambda n, m, M, causal=False: n * n * (m + M),
        ),
    ),
    tolerance=EXACT,
)

WEIGHTS_BYTES = Exercise(
    "weights_bytes",
    cases=(
        Case((4096,), about="for n = 4096 in float32"),
        Case((100,), {"dtype": "float16"}, about="in float16"),
        Case((100, 8, "float64"), about="for 8 heads in float64"),
        Case((333,), {"heads": 12}, about="for 12 heads"),
    ),
    mistakes=(
        Mistake(
            "your answer ignores the dtype: it uses 4 bytes per number",
            lambda n, heads=1, dtype="float32": heads * n * n * 4,
        ),
        Mistake(
            "your answer ignores the dtype: it uses 8 bytes per number",
            lambda n, heads=1, dtype="float32": heads * n * n * 8,
        ),
        Mistake(
            "your answer is in bits: a byte has 8 of them, and float32 takes 4 bytes",
            lambda n, heads=1, dtype="float32": heads * n * n * 8 * _size(dtype),
        ),
        Mistake(
            "your answer is the number of numbers: each takes itemsize bytes",
            lambda n, heads=1, dtype="float32": heads * n * n,
        ),
        Mistake(
            "your answer covers only one head: every head has its own n×n weights",
            lambda n, heads=1, dtype="float32": n * n * _size(dtype),
        ),
        Mistake(
            "your answer has n(n+1)/2 weights: the array is stored in full, n×n, even if parts are "
            "masked",
            lambda n, heads=1, dtype="float32": heads * _pairs(n, True) * _size(dtype),
        ),
    ),
    tolerance=EXACT,
)

STATE_BYTES = Exercise(
    "state_bytes",
    cases=(
        Case((64, 48), about="for m = 64, M = 48 in float32"),
        Case((561, 80), {"dtype": "float16"}, about="in float16"),
        Case((16, 24, 8, "float64"), about="for 8 heads in float64"),
        Case((100, 7), {"heads": 3}, about="for 3 heads"),
    ),
    mistakes=(
        Mistake(
            "your answer covers only U: the state also holds Z, another m numbers",
            lambda m, M, heads=1, dtype="float32": heads * m * M * _size(dtype),
        ),
        Mistake(
            "your Z is as wide as the values: Z = Σφ(k) has m entries",
            lambda m, M, heads=1, dtype="float32": heads * (m * M + M) * _size(dtype),
        ),
        Mistake(
            "your U is m×m: it is Σφ(k)vᵀ, m×M",
            lambda m, M, heads=1, dtype="float32": heads * (m * m + m) * _size(dtype),
        ),
        Mistake(
            "your answer ignores the dtype: it uses 4 bytes per number",
            lambda m, M, heads=1, dtype="float32": heads * m * (M + 1) * 4,
        ),
        Mistake(
            "your answer is in bits: a byte has 8 of them, and float32 takes 4 bytes",
            lambda m, M, heads=1, dtype="float32": heads * m * (M + 1) * 8 * _size(dtype),
        ),
        Mistake(
            "your answer is the number of numbers: each takes itemsize bytes",
            lambda m, M, heads=1, dtype="float32": heads * m * (M + 1),
        ),
        Mistake(
            "your answer covers only one head: every head has its own state",
            lambda m, M, heads=1, dtype="float32": m * (M + 1) * _size(dtype),
        ),
        Mistake(
            "the heads share one Z in your answer: every head has its own",
            lambda m, M, heads=1, dtype="float32": (heads * m * M + m) * _size(dtype),
        ),
    ),
    tolerance=EXACT,
)


def _crossover(D: int, m: int, M: int, causal: bool) -> int:
    """The least n with 2·m·(M+1) < (D+M)·(keys per query)."""
    per_token, per_pair = 2 * m * (M + 1), D + M
    return max(2 * per_token // per_pair, 1) if causal else per_token // per_pair + 1


def _tie_counts(D: int, m: int, M: int, causal: bool = False) -> int:
    per_token, per_pair = 2 * m * (M + 1), D + M
    if causal:
        return max(-(-2 * per_token // per_pair) - 1, 1)
    return -(-per_token // per_pair)


CROSSOVER = Exercise(
    "crossover_length",
    cases=(
        Case((64, 64, 64), about="for D = m = M = 64"),
        Case((32, 561, 80), about="for D = 32, m = 561, M = 80"),
        Case((16, 256, 48), about="for D = 16, m = 256, M = 48"),
        Case((64, 256, 64), about="for 256 features"),
        Case((64, 64, 64), {"causal": True}, about="with causal=True"),
        Case((32, 561, 80), {"causal": True}, about="with causal=True"),
        Case((16, 256, 48), {"causal": True}, about="with causal=True"),
        Case((500, 1, 1), {"causal": True}, about="where it is cheaper from the first token on"),
    ),
    mistakes=(
        Mistake(
            "your n is one too small where both take the same: linear attention is not cheaper "
            "there yet",
            _tie_counts,
        ),
        Mistake(
            "your n is one too small: at the quotient, rounded down, linear attention is not "
            "cheaper yet. The answer is the next n",
            lambda D, m, M, causal=False: _crossover(D, m, M, causal) - 1,
        ),
        Mistake(
            "your n is not rounded: at this quotient both take the same. The answer is the next "
            "whole number",
            lambda D, m, M, causal=False: (
                4 * m * (M + 1) / (D + M) - 1 if causal else 2 * m * (M + 1) / (D + M)
            ),
        ),
        Mistake(
            "with causal=True your n assumes n²/2 pairs: there are n(n+1)/2, so linear attention "
            "becomes cheaper one token earlier",
            lambda D, m, M, causal=False: (4 if causal else 2) * m * (M + 1) // (D + M) + 1,
        ),
        Mistake(
            "your n ignores causal: softmax attention then computes about half the pairs, and "
            "linear attention computes as much as before",
            lambda D, m, M, causal=False: _crossover(D, m, M, False),
        ),
        Mistake(
            "your n leaves out the normaliser: linear attention takes 2·m·(M+1) per token, not "
            "2·m·M",
            lambda D, m, M, causal=False: (
                max(4 * m * M // (D + M), 1) if causal else 2 * m * M // (D + M) + 1
            ),
        ),
        Mistake(
            "your n counts one pass of linear attention: computing U and Z takes m·(M+1) per "
            "token, and reading them takes as many",
            lambda D, m, M, causal=False: (
                max(2 * m * (M + 1) // (D + M), 1) if causal else m * (M + 1) // (D + M) + 1
            ),
        ),
        Mistake(
            "your n counts only the scores of softmax attention: a pair takes D + M multiply-adds, "
            "not D",
            lambda D, m, M, causal=False: (
                max(4 * m * (M + 1) // D, 1) if causal else 2 * m * (M + 1) // D + 1
            ),
        ),
        Mistake(
            "your n is m + 1: n > m is the condition only for D = M and without the normaliser",
            lambda D, m, M, causal=False: m + 1,
        ),
    ),
    tolerance=EXACT,
)


def _slope(x: Any, y: Any) -> float:
    x = np.asarray(x, dtype=float) - np.mean(x)
    return float(x @ np.asarray(y, dtype=float) / (x @ x))


def _logs(lengths: Any, costs: Any) -> tuple[Any, Any]:
    return np.log(np.asarray(lengths, dtype=float)), np.log(np.asarray(costs, dtype=float))


def _semi_log(lengths: Any, costs: Any) -> float:
    return _slope(lengths, _logs(lengths, costs)[1])


def _through_origin(lengths: Any, costs: Any) -> float:
    x, y = _logs(lengths, costs)
    return float(x @ y / (x @ x))


def _end_to_end(lengths: Any, costs: Any) -> float:
    x, y = _logs(lengths, costs)
    return float((y[-1] - y[0]) / (x[-1] - x[0]))


def _mean_of_steps(lengths: Any, costs: Any) -> float:
    x, y = _logs(lengths, costs)
    return float(np.mean(np.diff(y) / np.diff(x)))


def _mean_ratio(lengths: Any, costs: Any) -> float:
    c = np.asarray(costs, dtype=float)
    return float(np.mean(c[1:] / c[:-1]))


def _seconds(lengths: list[int], power: float, seed: int) -> list[float]:
    """As if measured: a power of n, each time up to 30 % longer."""
    late = 1 + 0.3 * np.random.default_rng([1, seed]).random(len(lengths))
    return [float(x) for x in 2e-9 * np.array(lengths, dtype=float) ** power * late]


DOUBLED = [128, 256, 512, 1024, 2048, 4096]
UNEVEN = [50, 100, 300, 1000, 5000]
GROWTH = Exercise(
    "growth_exponent",
    cases=(
        Case((DOUBLED, [144 * n * n for n in DOUBLED]), about="for costs 144·n²"),
        Case((UNEVEN, [0.5 * n**1.5 for n in UNEVEN]), about="for lengths that are not doubled"),
        Case((DOUBLED, _seconds(DOUBLED, 2, 0)), about="for costs that were measured"),
        Case((UNEVEN, _seconds(UNEVEN, 1, 1)), about="for costs that were measured"),
    ),
    mistakes=(
        Mistake(
            "your slope uses the costs themselves: take the logarithm of both, lengths and costs",
            _slope,
        ),
        Mistake(
            "your slope is log cost against n: take the logarithm of the lengths too",
            _semi_log,
        ),
        Mistake(
            "your slope is log n against log cost: the lengths belong on the x axis",
            lambda lengths, costs: _slope(*reversed(_logs(lengths, costs))),
        ),
        Mistake(
            "your line goes through the origin: cost = c·nᵖ is log cost = p·log n + log c, and "
            "needs its intercept log c",
            _through_origin,
        ),
        Mistake(
            "your slope uses only the first and the last point: least squares uses all points",
            _end_to_end,
        ),
        Mistake(
            "your slope is the mean of the slopes from one length to the next: least squares "
            "weighs the points differently",
            _mean_of_steps,
        ),
        Mistake(
            "your answer is the factor from one cost to the next: the exponent is log(factor) / "
            "log(n₂/n₁)",
            _mean_ratio,
        ),
    ),
    tolerance=1e-6,
)

GIB = 2**30
CONTEXT = Exercise(
    "longest_context",
    cases=(
        Case((64 * 2**20,), about="for 64 MiB in float32, which n = 4096 fills exactly"),
        Case((10**9,), about="for 10⁹ bytes in float32"),
        Case((8 * GIB, 12), about="for 12 heads and 8 GiB"),
        Case((16 * GIB,), {"dtype": "float16"}, about="in float16"),
        Case((10**8, 8, "float64"), about="for 8 heads in float64"),
    ),
    mistakes=(
        Mistake(
            "your n is not rounded: a context has a whole number of tokens. Round down "
            "(math.isqrt), because one more token would not fit",
            lambda budget, heads=1, dtype="float32": math.sqrt(budget / (heads * _size(dtype))),
        ),
        Mistake(
            "your n is rounded to the nearest whole number: if that means up, its weights take "
            "more than the budget. Round down",
            lambda budget, heads=1, dtype="float32": round(
                math.sqrt(budget / (heads * _size(dtype)))
            ),
        ),
        Mistake(
            "your n is rounded up: its weights take more than the budget",
            lambda budget, heads=1, dtype="float32": math.ceil(
                math.sqrt(budget / (heads * _size(dtype)))
            ),
        ),
        Mistake(
            "your n is one too small if the budget is filled exactly: that still fits",
            lambda budget, heads=1, dtype="float32": math.isqrt(
                budget // (heads * _size(dtype)) - (budget % (heads * _size(dtype)) == 0)
            ),
        ),
        Mistake(
            "your n is the number of numbers that fit: there are n² of them, so take the square "
            "root",
            lambda budget, heads=1, dtype="float32": budget // (heads * _size(dtype)),
        ),
        Mistake(
            "your n ignores the dtype: it uses 4 bytes per number",
            lambda budget, heads=1, dtype="float32": math.isqrt(budget // (heads * 4)),
        ),
        Mistake(
            "your n assumes 1 byte per number: a number takes itemsize bytes",
            lambda budget, heads=1, dtype="float32": math.isqrt(budget // heads),
        ),
        Mistake(
            "your n covers the weights of only one head: every head has its own",
            lambda budget, heads=1, dtype="float32": math.isqrt(budget // _size(dtype)),
        ),
        Mistake(
            "you divided n by the number of heads: h heads share the budget, so n shrinks by √h",
            lambda budget, heads=1, dtype="float32": math.isqrt(budget // _size(dtype)) // heads,
        ),
    ),
    tolerance=EXACT,
)

LAB = Lab(
    number="01",
    folder="lab01_complexity",
    title="Complexity",
    reference=complexity,
    exercises=(
        SOFTMAX_COUNT,
        LINEAR_COUNT,
        WEIGHTS_BYTES,
        STATE_BYTES,
        CROSSOVER,
        GROWTH,
        CONTEXT,
    ),
)
