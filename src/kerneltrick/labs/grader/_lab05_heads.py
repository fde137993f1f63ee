"""Lab 05: cases and common mistakes of several heads."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kerneltrick.labs.grader._lab import Case, Exercise, Mistake
from kerneltrick.labs.grader._lab05 import Attend, normal, softmax_heads
from kerneltrick.labs.grader._pieces import Array


def _split(X: Array, heads: int) -> Array:
    return np.swapaxes(X.reshape(*X.shape[:-1], heads, -1), -3, -2)


def _combine(X: Array) -> Array:
    X = np.swapaxes(X, -3, -2)
    return X.reshape(*X.shape[:-2], -1)


def _split_by_reshape(X: Array, heads: int) -> Array:
    *batch, n, width = X.shape
    return X.reshape(*batch, heads, n, width // heads)


def _combine_by_reshape(X: Array) -> Array:
    *batch, heads, n, width = X.shape
    return X.reshape(*batch, n, heads * width)


def _split_interleaved(X: Array, heads: int) -> Array:
    return np.moveaxis(X.reshape(*X.shape[:-1], -1, heads), -1, -3)


def _combine_interleaved(X: Array) -> Array:
    X = np.moveaxis(X, -3, -1)
    return X.reshape(*X.shape[:-2], -1)


SPLIT = Exercise(
    "split_heads",
    cases=(
        Case((np.arange(24.0).reshape(4, 6), 2), about="for 4 tokens of 2 heads"),
        Case((normal(5, 12), 4), about="for 4 heads"),
        Case((normal(2, 5, 12), 3), about="for a batch"),
        Case((normal(5, 8), 1), about="for one head"),
    ),
    mistakes=(
        Mistake(
            "you reshape without transposing, which mixes the tokens: reshape to (n, heads, w), "
            "then swap the first two",
            _split_by_reshape,
        ),
        Mistake(
            "your heads use every heads-th column: head 0 has the first w columns",
            _split_interleaved,
        ),
        Mistake(
            "your answer is (n, heads, w): the heads come first, swap the two axes",
            lambda X, heads: X.reshape(*X.shape[:-1], heads, -1),
        ),
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
    mistakes=(
        Mistake(
            "you reshape without transposing, which mixes the tokens: swap to (n, heads, w), then "
            "reshape",
            _combine_by_reshape,
        ),
        Mistake(
            "your columns alternate between the heads: all w columns of head 0 come first",
            _combine_interleaved,
        ),
        Mistake(
            "you add the heads: they must stand side by side, heads·w columns",
            lambda X: X.sum(axis=-3),
        ),
        Mistake(
            "you average the heads: they must stand side by side, heads·w columns",
            lambda X: X.mean(axis=-3),
        ),
    ),
)


def _heads(
    split: Callable[[Array, int], Array] = _split,
    combine: Callable[[Array], Array] = _combine,
    attend: Attend = softmax_heads,
    project: bool = True,
) -> Attend:
    """Multi-head attention with one of its steps replaced."""

    def answer(
        X: Array, W_q: Array, W_k: Array, W_v: Array, W_o: Array, heads: int, causal: bool = False
    ) -> Array:
        q, k, v = (split(X @ W, heads) for W in (W_q, W_k, W_v))
        output = combine(attend(q, k, v, causal))
        return output @ W_o if project else output

    return answer


def _no_heads(
    X: Array, W_q: Array, W_k: Array, W_v: Array, W_o: Array, heads: int, causal: bool = False
) -> Array:
    return np.asarray(softmax_heads(X @ W_q, X @ W_k, X @ W_v, causal) @ W_o)


def _scaled_by(width: Callable[[Array, Array], float]) -> Attend:
    return lambda Q, K, V, causal: softmax_heads(Q, K, V, causal, scale=width(Q, V) ** -0.5)


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
    mistakes=(
        Mistake(
            "your output matches attention without the output projection W_o",
            _heads(project=False),
        ),
        Mistake(
            "your scale is 1/√(heads·k), the width of all heads together: each head uses its own "
            "width k",
            lambda X, W_q, W_k, W_v, W_o, heads, causal=False: _heads(
                attend=_scaled_by(lambda Q, V: W_q.shape[-1])
            )(X, W_q, W_k, W_v, W_o, heads, causal),
        ),
        Mistake(
            "your scale is 1/√d, but d is the width of the layer: each head uses its own width k",
            lambda X, W_q, W_k, W_v, W_o, heads, causal=False: _heads(
                attend=_scaled_by(lambda Q, V: X.shape[-1])
            )(X, W_q, W_k, W_v, W_o, heads, causal),
        ),
        Mistake(
            "your scale is 1/√v, but v is the width of the values: use the width k of queries and "
            "keys",
            _heads(attend=_scaled_by(lambda Q, V: V.shape[-1])),
        ),
        Mistake(
            "your output matches attention without the scale 1/√k",
            _heads(attend=_scaled_by(lambda Q, V: 1)),
        ),
        Mistake(
            "your output matches a single head as wide as all of them: split queries, keys and "
            "values into heads first",
            _no_heads,
        ),
        Mistake(
            "your heads are split by a reshape without transposing, which mixes the tokens: "
            "reshape to (n, heads, w), then swap",
            _heads(split=_split_by_reshape),
        ),
        Mistake(
            "your heads are combined by a reshape without transposing, which mixes the tokens: "
            "swap to (n, heads, w), then reshape",
            _heads(combine=_combine_by_reshape),
        ),
        Mistake(
            "your heads are split and combined by a reshape without transposing, which mixes the "
            "tokens",
            _heads(split=_split_by_reshape, combine=_combine_by_reshape),
        ),
        Mistake(
            "your heads use every heads-th column: head 0 has the first k columns of W_q",
            _heads(split=_split_interleaved),
        ),
        Mistake(
            "your output with causal=True sees the future",
            _heads(attend=lambda Q, K, V, causal: softmax_heads(Q, K, V)),
        ),
    ),
)


def _multi_query(
    attend: Callable[[Array, Array, Array], Array] = lambda Q, K, V: softmax_heads(Q, K, V, True),
    output: str = "bhnv,hvd->bnd",
    average: bool = False,
) -> Callable[..., Array]:
    """Multi-query attention with one of its steps replaced."""

    def answer(X: Array, W_q: Array, W_k: Array, W_v: Array, W_o: Array) -> Array:
        q = np.einsum("bnd,hdk->bhnk", X, W_q)
        k, v = X @ W_k, X @ W_v
        found = np.einsum(output, attend(q, k[:, None], v[:, None]), W_o)
        return np.asarray(found / len(W_q) if average else found)

    return answer


def _softmax_over_heads(Q: Array, K: Array, V: Array) -> Array:
    return softmax_heads(Q, K, V, True, axis=-3)


def _first_head_only(X: Array, W_q: Array, W_k: Array, W_v: Array, W_o: Array) -> Array:
    return _multi_query()(X, W_q[:1], W_k, W_v, W_o[:1])


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
    mistakes=(
        Mistake(
            "your output is not causal: token i must not see the tokens after it",
            _multi_query(attend=lambda Q, K, V: softmax_heads(Q, K, V)),
        ),
        Mistake(
            "your output matches attention without the scale 1/√k",
            _multi_query(attend=lambda Q, K, V: softmax_heads(Q, K, V, True, scale=1)),
        ),
        Mistake(
            "your scale is 1/√d, but d is the width of the layer: use 1/√k, where k is the width "
            "of a head",
            lambda X, W_q, W_k, W_v, W_o: _multi_query(
                attend=lambda Q, K, V: softmax_heads(Q, K, V, True, scale=X.shape[-1] ** -0.5)
            )(X, W_q, W_k, W_v, W_o),
        ),
        Mistake(
            "your scale is 1/√v, but v is the width of the values: use 1/√k, where k is the width "
            "of the keys",
            _multi_query(
                attend=lambda Q, K, V: softmax_heads(Q, K, V, True, scale=V.shape[-1] ** -0.5)
            ),
        ),
        Mistake(
            "your softmax runs over the heads: the weights of a query over the keys must add up "
            "to 1",
            _multi_query(attend=_softmax_over_heads),
        ),
        Mistake(
            "your output is the mean of the heads: it must be their sum",
            _multi_query(average=True),
        ),
        Mistake(
            "your output uses only the first query head: add up all h heads",
            _first_head_only,
        ),
        Mistake(
            "your query heads are not projected by their own slices of W_o: you sum the heads "
            "first, and W_o over h, as if all heads had one output projection",
            _multi_query(output="bhnv,gvd->bnd"),
        ),
    ),
)
