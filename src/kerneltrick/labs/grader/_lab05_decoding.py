"""Lab 05: cases and common mistakes of decoding and its costs."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kerneltrick.labs.grader._lab import Case, Exercise, Mistake
from kerneltrick.labs.grader._lab05 import EXACT, OVERFLOWS, normal, softmax_heads
from kerneltrick.labs.grader._pieces import Array


def _step(
    *,
    share: Callable[[Array, int], Array] = lambda X, times: np.repeat(X, times, axis=1),
    append: Callable[[Array, Array], Array] = lambda old, new: np.concatenate([old, new], axis=2),
    sees_itself: bool = True,
    remembers: bool = True,
    project: bool = True,
    scale: Callable[..., float] = lambda d, k, v: k**-0.5,
) -> Callable[..., tuple[Array, Array, Array]]:
    """A step of decoding with one of its parts replaced."""

    def answer(
        x: Array, W_q: Array, W_k: Array, W_v: Array, W_o: Array, keys: Array, values: Array
    ) -> tuple[Array, Array, Array]:
        q = np.einsum("bd,hdk->bhk", x, W_q)[:, :, None]
        k = append(keys, np.einsum("bd,gdk->bgk", x, W_k)[:, :, None])
        v = append(values, np.einsum("bd,gdv->bgv", x, W_v)[:, :, None])
        seen_k, seen_v = (k, v) if sees_itself else (keys, values)
        times = len(W_q) // len(W_k)
        factor = scale(x.shape[-1], W_k.shape[-1], W_v.shape[-1])
        output = softmax_heads(q, share(seen_k, times), share(seen_v, times), scale=factor)[:, :, 0]
        if not project:
            output = output.reshape(len(x), -1)
        else:
            output = np.einsum("bhv,hvd->bd", output, W_o)
        return (output, k, v) if remembers else (output, keys, values)

    return answer


def _tile(X: Array, times: int) -> Array:
    return np.concatenate([X] * times, axis=1)


def _prepend(old: Array, new: Array) -> Array:
    return np.concatenate([new, old], axis=2)


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
    mistakes=(
        Mistake(
            "your query heads use key/value head i % g: neighbouring heads share, so head i uses i "
            "// (h/g) (np.repeat, not np.tile)",
            _step(share=_tile),
        ),
        Mistake(
            "your token does not see itself: append its key and value first, then attend",
            _step(sees_itself=False),
        ),
        Mistake(
            "you return the cache without the new token: append its key and value at the end",
            _step(remembers=False),
        ),
        Mistake(
            "your new key and value are at the beginning of the cache: append them at the end",
            _step(append=_prepend),
        ),
        Mistake(
            "your output matches attention without the output projection W_o",
            _step(project=False),
        ),
        Mistake(
            "your output matches attention without the scale 1/√k",
            _step(scale=lambda d, k, v: 1.0),
        ),
        Mistake(
            "your scale is 1/√d, but d is the width of the layer: use 1/√k, where k is the width "
            "of a head",
            _step(scale=lambda d, k, v: d**-0.5),
        ),
        Mistake(
            "your scale is 1/k: it is 1/√k",
            _step(scale=lambda d, k, v: 1 / k),
        ),
    ),
)


def _step_count(b: int, n: int, d: int, h: int, g: int, attention: int) -> int:
    return b * (2 * d * d + 2 * d * g * (d // h) + attention)


STEP_COUNT = Exercise(
    "decoding_multiply_adds",
    cases=(
        Case((1, 4096, 512, 8, 8), about="for multi-head attention"),
        Case((3, 4096, 512, 8, 1), about="for multi-query attention"),
        Case((2, 100, 96, 12, 4), about="for 12 heads that share 4 key/value heads"),
    ),
    mistakes=(
        Mistake(
            "you counted the scores and sums of g heads: each of the h queries still meets n keys, "
            "2·n·d in total. Sharing saves memory, but not this",
            lambda b, n, d, h, g: _step_count(b, n, d, h, g, 2 * n * g * (d // h)),
        ),
        Mistake(
            "your count leaves out the projections: queries and output take d² each, keys and "
            "values d·g·k each",
            lambda b, n, d, h, g: b * 2 * n * d,
        ),
        Mistake(
            "your count leaves out the output projection W_o, d² for each sequence",
            lambda b, n, d, h, g: _step_count(b, n, d, h, g, 2 * n * d) - b * d * d,
        ),
        Mistake(
            "you counted h key and value projections: there are g, d·g·k multiply-adds each",
            lambda b, n, d, h, g: b * (4 * d * d + 2 * n * d),
        ),
        Mistake(
            "your count has the n cached keys but not the values (or the other way round): each "
            "takes n·d",
            lambda b, n, d, h, g: _step_count(b, n, d, h, g, n * d),
        ),
        Mistake(
            "n already includes the new token: you added it again",
            lambda b, n, d, h, g: _step_count(b, n, d, h, g, 2 * (n + 1) * d),
        ),
        Mistake(
            "you project all n tokens again: earlier tokens are in the cache, so project only the "
            "new one",
            lambda b, n, d, h, g: b * (n * (2 * d * d + 2 * d * g * (d // h)) + 2 * n * d),
        ),
        Mistake(
            "you counted n queries: a step has one query per head",
            lambda b, n, d, h, g: _step_count(b, n, d, h, g, 2 * n * n * d),
        ),
        Mistake(
            "your scores and sums are h times too many: h heads of width d/h take n·d each, "
            "not n·h·d",
            lambda b, n, d, h, g: _step_count(b, n, d, h, g, 2 * n * h * d),
        ),
        Mistake(
            "you counted floating-point operations, two per multiply-add: a multiplication and the "
            "addition that follows it count as one",
            lambda b, n, d, h, g: 2 * _step_count(b, n, d, h, g, 2 * n * d),
        ),
    ),
    tolerance=EXACT,
)


def _kept_bytes(
    cache: Callable[..., int] = lambda b, n, g, k, v: b * n * g * (k + v),
    state: Callable[..., int] = lambda b, n, g, k, v, m: b * g * m * (v + 1),
    size: Callable[[str], int] = lambda dtype: np.dtype(dtype).itemsize,
) -> Callable[..., int]:
    """What is kept with one of its parts replaced."""

    def answer(
        b: int, n: int, g: int, k: int, v: int, m: int | None = None, dtype: str = "float32"
    ) -> int:
        numbers = cache(b, n, g, k, v) if m is None else state(b, n, g, k, v, m)
        return numbers * size(dtype)

    return answer


KEPT = Exercise(
    "kept_bytes",
    cases=(
        Case((1, 4096, 8, 64, 64), about="for multi-head attention with 8 heads"),
        Case((4, 1000, 2, 32, 48), about="for values wider than keys"),
        Case((2, 500, 1, 64, 80), {"dtype": "float16"}, about="for multi-query in float16"),
        Case((1, 4096, 8, 64, 64), {"m": 64}, about="for the state of linear attention"),
        Case((3, 1000, 2, 16, 24), {"m": 153, "dtype": "float64"}, about="for 153 features"),
    ),
    mistakes=(
        Mistake(
            "your cache holds only the keys: the values are stored too",
            _kept_bytes(cache=lambda b, n, g, k, v: b * n * g * k),
        ),
        Mistake(
            "your cache has values as wide as the keys: values have width v",
            _kept_bytes(cache=lambda b, n, g, k, v: 2 * b * n * g * k),
        ),
        Mistake(
            "your cache covers only one key/value head: each of the g heads has its own",
            _kept_bytes(cache=lambda b, n, g, k, v: b * n * (k + v)),
        ),
        Mistake(
            "your state holds only U: it also holds Z, m numbers per head",
            _kept_bytes(state=lambda b, n, g, k, v, m: b * g * m * v),
        ),
        Mistake(
            "your state grows with n: U and Z are sums over the tokens, so their size does not "
            "depend on n",
            _kept_bytes(state=lambda b, n, g, k, v, m: b * n * g * m * (v + 1)),
        ),
        Mistake(
            "you store a state and a cache: linear attention stores no tokens",
            _kept_bytes(state=lambda b, n, g, k, v, m: b * g * m * (v + 1) + b * n * g * (k + v)),
        ),
        Mistake(
            "your U is m×k: it is Σφ(k)vᵀ, m×v",
            _kept_bytes(state=lambda b, n, g, k, v, m: b * g * m * (k + 1)),
        ),
        Mistake(
            "your answer covers only one sequence: each of the b sequences has its own",
            _kept_bytes(
                lambda b, n, g, k, v: n * g * (k + v), lambda b, n, g, k, v, m: g * m * (v + 1)
            ),
        ),
        Mistake(
            "your answer ignores the dtype: it uses 4 bytes per number",
            _kept_bytes(size=lambda dtype: 4),
        ),
        Mistake(
            "your answer is the number of numbers: each takes itemsize bytes",
            _kept_bytes(size=lambda dtype: 1),
        ),
    ),
    tolerance=EXACT,
)
