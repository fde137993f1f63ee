"""How lab 05 is graded: the cases. Its mistakes are in lab05.txt."""

from __future__ import annotations

import math

import numpy as np

from kerneltrick.labs import heads_and_decoding
from kerneltrick.labs.grader._lab import Array, Case, Exercise, Lab

EXACT = 1e-9  # counts are whole numbers; floats that hold them exactly pass


OVERFLOWS = (
    "your softmax overflows: subtract the largest score of each query before np.exp, which changes "
    "no weight"
)
FUTURE_MAXIMUM = (
    "with causal=True you subtract the largest score of all keys, including later ones: if a later "
    "score is much larger, every weight that counts is exp(−2000) = 0, and 0/0 is NaN. Mask first, "
    "then subtract the largest score that is left"
)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([5, seed, *shape]).standard_normal(shape)


MOMENTS = Exercise(
    "dot_product_moments",
    cases=(
        Case((64, 0.0, 1.0, 0.0, 1.0), about="for coordinates with mean 0 and variance 1"),
        Case((16, 0.5, 2.0, 0.5, 2.0), about="for μ = 0.5 and σ = 2"),
        Case((10, 1.0, 0.5, -2.0, 3.0), about="for q and k of different laws"),
    ),
    tolerance=1e-6,
)


def _scored(scores: list[float]) -> tuple[Array, Array, Array]:
    """Every query has these scores with the keys, exactly, also in float32."""
    n = len(scores)
    Q, K = np.zeros((n, 4)), np.zeros((n, 4))
    Q[:, 0], K[:, 0] = 2.0, scores
    return Q, K, normal(n, 3, seed=3)


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
)


EXAMPLE = (
    np.array([[1.0, 1, 2]]),
    np.array([[1.0, 2, 0], [0, 3, 4], [5, 0, 0], [0, 0, 1]]),
    np.array([[7.0, 0, 0], [1, 4, 3], [0, 7, 0], [0, 0, 7]]),
)
TIED = (np.array([[1.0, 0], [0, 1]]), np.array([[1.0, 2], [3, 2], [3, 0]]), np.eye(3))
HARD = Exercise(
    "hard_attention",
    cases=(
        Case(EXAMPLE, about="for the example of the docstring"),
        Case((normal(9, 4), normal(9, 4, seed=1), normal(9, 3)), about="for 9 queries"),
        Case((normal(5, 4), normal(12, 4), normal(12, 6)), about="for more keys than queries"),
        Case(TIED, about="where two keys have the same score (the first is taken)"),
        Case(
            (np.abs(normal(3, 4)), -np.abs(normal(6, 4, seed=1)), normal(6, 3)),
            about="where every score is below 0",
            edge=True,
        ),
    ),
)


CROWDED = np.array([[3.0, 1], [2, 1], [-1, 2], [4, 0], [-2, -1], [0.5, 3]])
GRADIENTS = Exercise(
    "hard_attention_gradients",
    cases=(
        Case(
            (normal(5, 4), normal(7, 4), normal(7, 3), normal(5, 3)), about="for 5 queries, 7 keys"
        ),
        Case(
            (CROWDED, np.array([[1.0, 0], [0, 1], [-1, -1]]), normal(3, 4), normal(6, 4)),
            about="where several queries select the same value",
        ),
        Case((*EXAMPLE, np.array([[1.0, -2, 0.5]])), about="for a single query"),
    ),
)


SPLIT = Exercise(
    "split_heads",
    cases=(
        Case((np.arange(24.0).reshape(4, 6), 2), about="for 4 tokens of 2 heads"),
        Case((normal(5, 12), 4), about="for 4 heads"),
        Case((normal(2, 5, 12), 3), about="for a batch"),
        Case((normal(5, 8), 1), about="for one head"),
    ),
)

COMBINE = Exercise(
    "combine_heads",
    cases=(
        Case((np.arange(24.0).reshape(2, 4, 3),), about="for 4 tokens of 2 heads"),
        Case((normal(4, 5, 3),), about="for 4 heads"),
        Case((normal(2, 3, 5, 4),), about="for a batch"),
        Case((normal(1, 5, 8),), about="for one head"),
    ),
)


def _layer(d: int, heads: int, k: int, v: int, seed: int = 0) -> tuple[Array, ...]:
    shapes = ((d, heads * k), (d, heads * k), (d, heads * v), (heads * v, d))
    return tuple(normal(*shape, seed=seed + i) / math.sqrt(d) for i, shape in enumerate(shapes))


LARGE_SCORES = (
    "NaN where scores are large: subtract the largest score of each query before np.exp, and mask "
    "first, so that only keys that count are considered"
)

MULTI_HEAD = Exercise(
    "multi_head_attention",
    cases=(
        Case((normal(7, 12), *_layer(12, 3, 4, 4), 3), about="for values as wide as keys"),
        Case((normal(6, 8), *_layer(8, 2, 4, 7), 2), about="for values wider than keys"),
        Case((normal(2, 5, 12), *_layer(12, 4, 3, 2), 4), about="for a batch, narrow values"),
        Case(
            (normal(6, 8), *_layer(8, 2, 3, 5, seed=4), 2),
            {"causal": True},
            about="with causal=True",
        ),
        Case(
            (60 * normal(5, 8, seed=2), *_layer(8, 2, 3, 4, seed=8), 2),
            {"causal": True},
            about="with causal=True, for scores of about 1000",
            edge=True,
            not_finite=LARGE_SCORES,
        ),
    ),
)


def _shared_case(
    b: int, n: int, d: int, h: int, k: int, v: int, about: str, size: float = 1.0
) -> Case:
    shapes = ((h, d, k), (d, k), (d, v), (h, v, d))
    weights = (normal(*shape, seed=i) / math.sqrt(d) for i, shape in enumerate(shapes))
    return Case(
        (size * normal(b, n, d), *weights), about=about, not_finite=LARGE_SCORES, edge=size != 1
    )


MULTI_QUERY = Exercise(
    "multi_query_attention",
    cases=(
        _shared_case(b=2, n=6, d=8, h=4, k=3, v=5, about="for 4 heads"),
        _shared_case(b=3, n=5, d=6, h=2, k=3, v=3, about="for values as wide as keys"),
        _shared_case(b=1, n=7, d=5, h=1, k=4, v=2, about="for a single head"),
        _shared_case(b=1, n=5, d=6, h=2, k=3, v=2, about="for scores of about 1000", size=60.0),
    ),
)


def _decoding_case(
    b: int, n: int, d: int, h: int, g: int, k: int, v: int, about: str, size: float = 1.0
) -> Case:
    weights = (normal(h, d, k), normal(g, d, k, seed=1), normal(g, d, v), normal(h, v, d))
    cache = normal(b, g, n, k), normal(b, g, n, v, seed=1)
    x = size * normal(b, d) / math.sqrt(d)
    return Case((x, *weights, *cache), about=about, not_finite=OVERFLOWS, edge=size != 1)


STEP = Exercise(
    "decoding_step",
    cases=(
        _decoding_case(2, 5, 8, 4, 2, 3, 5, "for 4 query heads that share 2 key/value heads"),
        _decoding_case(3, 4, 12, 4, 4, 3, 3, "for a key/value head for each query head"),
        _decoding_case(2, 6, 8, 4, 1, 2, 2, "for one key/value head (multi-query)"),
        _decoding_case(2, 3, 9, 6, 2, 4, 4, "for 6 query heads that share 2 key/value heads"),
        _decoding_case(2, 4, 6, 2, 1, 4, 3, "for scores of about 1000", size=400.0),
    ),
)


STEP_COUNT = Exercise(
    "decoding_multiply_adds",
    cases=(
        Case((1, 4096, 512, 8, 8), about="for multi-head attention"),
        Case((3, 4096, 512, 8, 1), about="for multi-query attention"),
        Case((2, 100, 96, 12, 4), about="for 12 heads that share 4 key/value heads"),
    ),
    tolerance=EXACT,
)


KEPT = Exercise(
    "kept_bytes",
    cases=(
        Case((1, 4096, 8, 64, 64), about="for multi-head attention with 8 heads"),
        Case((4, 1000, 2, 32, 48), about="for values wider than keys"),
        Case((2, 500, 1, 64, 80), {"dtype": "float16"}, about="for multi-query in float16"),
        Case((1, 4096, 8, 64, 64), {"m": 64}, about="for the state of linear attention"),
        Case((3, 1000, 2, 16, 24), {"m": 153, "dtype": "float64"}, about="for 153 features"),
    ),
    tolerance=EXACT,
)


LAB = Lab(
    number="05",
    folder="lab05_heads_and_decoding",
    title="Heads and decoding",
    reference=heads_and_decoding,
    exercises=(
        MOMENTS,
        SOFTMAX,
        HARD,
        GRADIENTS,
        SPLIT,
        COMBINE,
        MULTI_HEAD,
        MULTI_QUERY,
        STEP,
        STEP_COUNT,
        KEPT,
    ),
)
