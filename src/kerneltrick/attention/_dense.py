"""Attention with its n×n weights formed: softmax, any similarity, argmax and its substitutes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import Array, astype, constant, space, stop_gradient
from kerneltrick.attention._arguments import check_inputs, check_scale
from kerneltrick.attention._call import check_call, report_zero
from kerneltrick.attention._heads import Windows, check_sinks, check_windows
from kerneltrick.attention._keywords import OnZero, Options
from kerneltrick.attention._linear import normalized_weights, run_attention, weights_of
from kerneltrick.engines import DenseRows, dense_rows, finish

Substitute = Literal["temperature", "gumbel", "straight-through"]
Weigh = Callable[[DenseRows], Array]


def softmax_attention(
    q: Annotated[Array, "(..., H_q, n_q, d) or (n_q, d)"],
    k: Annotated[Array, "(..., H, n, d) or (n, d)"],
    v: Annotated[Array, "(..., H, n, M) or (n, M)"],
    *,
    causal: bool = False,
    scale: float | None = None,
    temperature: float = 1.0,
    mask: Annotated[Array | None, "bool (..., H, n), (..., n) or (n,)"] = None,
    query_mask: Annotated[Array | None, "bool (..., H_q, n_q), (..., n_q) or (n_q,)"] = None,
    segment_ids: Annotated[Array | None, "integer (..., H, n), (..., n) or (n,)"] = None,
    window: Windows = None,
    sinks: int | Sequence[int] = 0,
    return_weights: bool = False,
    on_zero: OnZero | None = None,
) -> Any:
    """softmax(s·QKᵀ/τ)V with s = 1/√d unless given and temperature τ.

    Shapes, masks, packed segments, shared heads and NaN as in `linear_attention`; a query that may
    see no key at all follows `on_zero`. With a `window` only keys less than so many tokens away are
    seen, and the first `sinks` ones; both may be sequences with one for each key head. With
    `return_weights` also the weights (..., heads, n_q, n).

    Arrays on the CPU go through the compiled core, which never forms the n×n weights.

    >>> import numpy as np, kerneltrick as kt
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 10, 8))
    >>> output, weights = kt.softmax_attention(q, k, v, return_weights=True)
    >>> output.shape, bool(np.allclose(weights.sum(-1), 1))
    ((2, 10, 8), True)
    """
    who = "softmax_attention"
    near, first = check_windows(who, window), check_sinks(who, sinks)
    windows, counts = ((x,) if isinstance(x, int) else x for x in (near, first))
    heads = max(len(windows), len(counts))
    windows, counts = (x * heads if len(x) == 1 else x for x in (windows, counts))
    if any(not (reach or count) for reach, count in zip(windows, counts, strict=False)):
        raise ValueError(f"{who} with window=0 and sinks=0 sees nothing; None is no window")
    scale = _scale(who, q, scale, temperature)
    options = Options(
        causal=causal,
        scale=scale,
        mask=mask,
        query_mask=query_mask,
        segment_ids=segment_ids,
        window=near,
        sinks=first,
        on_zero=on_zero,
        return_state=False,
    )
    output = run_attention(who, q, k, v, "softmax", options, "exact")
    if not return_weights:
        return output
    weights = weights_of(who, q, k, "softmax", options)
    return output, astype(weights, v.dtype)


def kernel_attention(
    q: Annotated[Array, "(..., H_q, n_q, d) or (n_q, d)"],
    k: Annotated[Array, "(..., H, n, d) or (n, d)"],
    v: Annotated[Array, "(..., H, n, M) or (n, M)"],
    kernel: Callable[[Array, Array], Array] | maps.FeatureMap | str,
    *,
    causal: bool = False,
    scale: float | None = None,
    normalize: bool = True,
    mask: Annotated[Array | None, "bool (..., H, n), (..., n) or (n,)"] = None,
    query_mask: Annotated[Array | None, "bool (..., H_q, n_q), (..., n_q) or (n_q,)"] = None,
    return_weights: bool = False,
    on_zero: OnZero | None = None,
) -> Any:
    """oᵢ = Σⱼ sim(qᵢ,kⱼ)vⱼ / Σⱼ sim(qᵢ,kⱼ) for any similarity, in O(n²); no softmax on top.

    `kernel(q, k)` turns (..., n_q, d) and (..., n, d) into (..., n_q, n). A feature map, or its
    name, stands for its closed-form kernel.

    >>> import numpy as np, kerneltrick as kt
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 10, 8))
    >>> a = kt.kernel_attention(q, k, v, lambda q, k: np.exp(q @ k.T / np.sqrt(8)))
    >>> bool(np.allclose(a, kt.softmax_attention(q, k, v)))
    True
    """
    inputs = check_inputs("kernel_attention", q, k, v)
    if isinstance(kernel, str):
        kernel = maps.get(kernel)
    if isinstance(kernel, maps.FeatureMap):
        kernel.check_positions(0, max(q.shape[-2], k.shape[-2], 1) - 1)
        scale = kernel.default_scale(q.shape[-1]) if scale is None else scale
        similarity: Callable[[Array, Array], Array] = kernel.kernel
    elif callable(kernel):
        similarity = kernel
    else:
        raise TypeError(
            "kernel must be a function (q, k) → similarities, a feature map or its name, "
            f"not {type(kernel).__name__}"
        )
    xp = inputs.xp

    def weigh(rows: DenseRows) -> Array:
        clean_q, clean_k = rows.queries.features, xp.expand_dims(rows.keys.features, axis=-3)
        clean_k = xp.broadcast_to(clean_k, (*clean_q.shape[:-2], *clean_k.shape[-2:]))
        # The kernel sees arrays laid out as the caller's, shared key heads repeated.
        flat = (*clean_q.shape[:-4], clean_q.shape[-4] * clean_q.shape[-3])
        own_q = inputs.restore(xp.reshape(clean_q, (*flat, *clean_q.shape[-2:])))
        own_k = inputs.restore(xp.reshape(clean_k, (*flat, *clean_k.shape[-2:])))
        weights = similarity(own_q, own_k)
        expected = (*own_q.shape[:-1], own_k.shape[-2])
        if tuple(getattr(weights, "shape", ())) != expected:
            raise ValueError(
                f"the kernel must turn q {tuple(own_q.shape)} and k {tuple(own_k.shape)} into "
                f"similarities {expected}, not {tuple(getattr(weights, 'shape', ()))}"
            )
        weights = xp.reshape(weights, (*clean_q.shape[:-1], clean_k.shape[-2]))
        return xp.where(rows.allowed, weights, xp.zeros_like(weights))

    scale = 1.0 if scale is None else scale
    options = Options(
        causal=causal,
        scale=scale,
        normalize=normalize,
        mask=mask,
        query_mask=query_mask,
        on_zero=on_zero,
    )
    return _weighted_attention("kernel_attention", q, k, v, weigh, options, return_weights)


def hard_attention(
    q: Annotated[Array, "(..., H_q, n_q, d) or (n_q, d)"],
    k: Annotated[Array, "(..., H, n, d) or (n, d)"],
    v: Annotated[Array, "(..., H, n, M) or (n, M)"],
    *,
    causal: bool = False,
    scale: float | None = None,
    substitute: Substitute | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    mask: Annotated[Array | None, "bool (..., H, n), (..., n) or (n,)"] = None,
    query_mask: Annotated[Array | None, "bool (..., H_q, n_q), (..., n_q) or (n_q,)"] = None,
    return_weights: bool = False,
    on_zero: OnZero | None = None,
) -> Any:
    """The value whose key has the largest q·k (the first one on ties): softmax at temperature 0.

    Its gradient to q and to every k is 0 almost everywhere; only the chosen value receives one. A
    `substitute` makes it trainable: "temperature" is softmax(s·q·k/τ), "gumbel" adds seeded Gumbel
    noise to the scores first (a sample of the argmax as τ → 0), "straight-through" gives the
    hard choice forward and the gradient of the softmax backward.

    >>> import numpy as np, kerneltrick as kt
    >>> k = np.array([[1.0, 2, 0], [0, 3, 4], [5, 0, 0], [0, 0, 1]])
    >>> v = np.array([[0.0, 0, 0], [1, 4, 3], [2, 2, 2], [9, 9, 9]])
    >>> kt.hard_attention(np.array([[1.0, 1, 2]]), k, v)
    array([[1., 4., 3.]])
    """
    known = (None, "temperature", "gumbel", "straight-through")
    if substitute not in known:
        raise ValueError(f"substitute must be one of {known}, not {substitute!r}")
    scale = _scale("hard_attention", q, scale, temperature)
    xp = check_inputs("hard_attention", q, k, v).xp

    def weigh(rows: DenseRows) -> Array:
        scores = rows.weights
        if substitute == "gumbel":
            noise = np.random.default_rng(seed).gumbel(size=tuple(scores.shape))
            scores = scores + constant(noise / temperature, scores)
        soft = _exponentials(scores, rows.allowed)
        if substitute in ("temperature", "gumbel"):
            return soft
        lowest = xp.full_like(scores, -math.inf)
        best = xp.argmax(xp.where(rows.allowed, scores, lowest), axis=-1)
        numbers = constant(np.arange(scores.shape[-1]), scores, best.dtype)
        hard = astype(best[..., None] == numbers, scores.dtype)
        hard = xp.where(rows.allowed, hard, xp.zeros_like(hard))
        if substitute is None:
            return hard
        total = xp.sum(soft, axis=-1, keepdims=True)
        soft = soft / xp.where(total == 0, xp.ones_like(total), total)
        return hard + (soft - stop_gradient(soft))

    options = Options(causal=causal, scale=scale, mask=mask, query_mask=query_mask, on_zero=on_zero)
    return _weighted_attention("hard_attention", q, k, v, weigh, options, return_weights)


def _scale(who: str, q: Array, scale: float | None, temperature: float) -> float:
    width = q.shape[-1] if getattr(q, "ndim", 0) else 0
    scale = 1 / math.sqrt(max(width, 1)) if scale is None else check_scale(who, scale)
    return scale / check_scale(who, temperature, "temperature")


def _exponentials(scores: Array, allowed: Array) -> Array:
    """exp(score − row maximum) over the keys allowed, 0 elsewhere."""
    xp = space(scores)
    scores = xp.where(allowed, scores, xp.full_like(scores, -math.inf))
    top = stop_gradient(xp.max(scores, axis=-1, keepdims=True))
    return xp.exp(scores - xp.where(top == -math.inf, xp.zeros_like(top), top))


def _weighted_attention(
    who: str,
    q: Array,
    k: Array,
    v: Array,
    weigh: Weigh,
    options: Options,
    return_weights: bool,
) -> Any:
    """Weights by `weigh` from the rows of scaled dot products, then weights times values."""
    call = check_call(who, q, k, v, maps.Identity(), options)
    numbers = np.arange(call.data.q.shape[-2])
    rows = dense_rows(call.rule, call.data, numbers)
    weights = weigh(rows)
    mixed = weights @ rows.values
    output, zero = finish(call.rule, mixed, None, rows.queries, rows.bad, v.dtype)
    report_zero(call, zero)
    n_q, n = q.shape[-2], k.shape[-2]
    output = call.inputs.restore(output[..., :n_q, :])
    if not return_weights:
        return output
    shown = normalized_weights(call, rows, weights, numbers)
    return output, call.inputs.restore(astype(shown[..., :n_q, :n], v.dtype))
