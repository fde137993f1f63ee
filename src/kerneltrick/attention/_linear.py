"""Linear attention: picks an engine for a checked call."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, overload

import numpy as np

from kerneltrick import engines, maps
from kerneltrick._arrays import Array, astype, namespace, untranslated, zeros
from kerneltrick.attention._call import CheckedCall, check_call, report_zero
from kerneltrick.attention._dial import Dial, HeadGroup, Setting, by_head
from kerneltrick.attention._heads import Windows
from kerneltrick.attention._keywords import (
    AttentionKeywords,
    LinearAttentionKeywords,
    OnZero,
    Options,
    Positions,
    read_options,
    with_keywords_of,
)
from kerneltrick.attention._mixed import split_call, together
from kerneltrick.attention._state import State, state_of
from kerneltrick.engines import Carry, DenseRows, Rule, dense_rows, times, vanishes

if TYPE_CHECKING:
    from kerneltrick.attention._keywords import Unpack


@overload
def linear_attention(
    q: Annotated[Array, "(..., H_q, n_q, d) or (n_q, d)"],
    k: Annotated[Array, "(..., H, n, d) or (n, d)"],
    v: Annotated[Array, "(..., H, n, M) or (n, M)"],
    feature_map: maps.MapLike | Dial | Rule = ...,
    *,
    return_state: Literal[False] = ...,
    **keywords: Unpack[LinearAttentionKeywords],
) -> Array: ...


@overload
def linear_attention(
    q: Annotated[Array, "(..., H_q, n_q, d) or (n_q, d)"],
    k: Annotated[Array, "(..., H, n, d) or (n, d)"],
    v: Annotated[Array, "(..., H, n, M) or (n, M)"],
    feature_map: maps.MapLike | Dial | Rule = ...,
    *,
    return_state: Literal[True],
    **keywords: Unpack[LinearAttentionKeywords],
) -> tuple[Array, State]: ...


def linear_attention(
    q: Annotated[Array, "(..., H_q, n_q, d) or (n_q, d)"],
    k: Annotated[Array, "(..., H, n, d) or (n, d)"],
    v: Annotated[Array, "(..., H, n, M) or (n, M)"],
    feature_map: maps.MapLike | Dial | Rule = "elu",
    *,
    causal: bool = False,
    scale: float | None = None,
    log_decay: Annotated[Any, "(), (H,), (..., H, n) or (..., H, n, m)"] = None,
    normalize: bool = True,
    mask: Annotated[Array | None, "bool (..., H, n), (..., n) or (n,)"] = None,
    query_mask: Annotated[Array | None, "bool (..., H_q, n_q), (..., n_q) or (n_q,)"] = None,
    segment_ids: Annotated[Array | None, "integer (..., H, n), (..., n) or (n,)"] = None,
    positions: Annotated[Positions | None, "(..., H, n), (..., n) or (n,)"] = None,
    state: State | None = None,
    window: Windows = 0,
    sinks: int | Sequence[int] = 0,
    far: Annotated[Any, "() or (H_q,)"] = None,
    return_state: bool = False,
    on_zero: OnZero | None = None,
    chunk_size: int = 64,
    engine: str = "auto",
) -> Annotated[Array, "(..., H_q, n_q, M)"] | tuple[Array, State]:
    """oᵢ = φ(qᵢ)ᵀU / φ(qᵢ)ᵀZ with U = Σφ(kⱼ)vⱼᵀ, Z = Σφ(kⱼ): attention in O(n) (j ≤ i if causal).

    Parameters
    ----------
    q, k, v
        (..., heads, n, d) or (n, d), of any array library; v may have another width. Fewer heads
        in k and v are shared: query head h uses key head h // (H_q / H_kv).
    feature_map
        A name such as "elu" or "favor:features=256", a `FeatureMap`, or a function x → φ(x). With
        its window as one text: "elu@window=16,sinks=1".
    causal
        Token i sees tokens j ≤ i, and what `state` remembers. Otherwise every query sees every key.
    scale
        > 0; q and k are multiplied by √scale before φ. None: 1/√d for maps that stand for softmax
        (favor, taylor, hedgehog), else 1.
    log_decay
        ≤ 0 and finite where tokens are not masked; the state is multiplied by exp(log_decay) before
        each token. A number, (H_kv,), one per token (..., H_kv, n), or one per token and feature
        (..., H_kv, n, m). Causal only.
    normalize
        Divide by φ(q)ᵀZ. Without that, near weights e^{s·q·k} must be numbers of the arithmetic:
        s·q·k below 88 in float32.
    mask
        True = keep; (..., H_kv, n), (..., n) or (n,). Causal: a masked token contributes nothing,
        does not decay the state, and its output is 0. Full: it marks keys.
    query_mask
        The same for queries of full attention.
    segment_ids
        Whole numbers (..., n): the state restarts where the id changes. The first segment
        continues `state`. Causal only.
    positions
        (..., n), for maps that use them; a pair if queries and keys differ. Default: counted from
        the end of `state`.
    window, sinks, far
        Keys less than `window` tokens away (masked ones do not count), and the first `sinks` tokens
        of the sequence or segment, are near: they have their softmax weight e^{s·q·k}, s = `scale`
        or 1/√d. All others are far: e^g·φ(q)·φ(k), with one normaliser for both. `far` is g, a
        number or an array (H_q,), or a `Far`, which also says in what units. window=0: linear
        attention; a window as long as the text, or None: softmax attention. `window` and `sinks`
        may be sequences with one for each key–value head. Each head then costs, and keeps in the
        state, what it would in a call of its own. As text: "elu@window=16+whole+64", or
        "elu@window=16,whole=1" for heads that see the whole text among others that do not. A
        function x → φ(x) sees only the heads that use it.
    state, return_state
        Continue after `state`; also return the state after the last token.
    on_zero
        What to do where φ(q)ᵀZ is exactly 0: "raise", or make the output "nan" or "zero". Default:
        raise where values can be looked at (CPU, not traced), else nan.
    chunk_size
        Tokens per chunk of the chunked engine (at most 64 at a time in float32, so that sums stay
        accurate; at most 16 with a decay per feature).
    engine
        "native" (compiled, for arrays on the CPU), "chunked", "recurrent", "dense", or "auto":
        native where it can be, else chunked.

    Returns
    -------
    The output, in kind and in the dtype of v; with `return_state` also the state.

    A NaN or inf in k or v makes NaN exactly the outputs that depend on it, even where the weight
    is 0. In every engine a row counts as 0 if its sum of weights, beside the largest scale that it
    sees, is below the normal numbers of the arithmetic (1.2 · 10⁻³⁸ in float32), where weights lose
    their digits: then `on_zero` decides. Values are summed before they are divided: a row whose
    Σ|φ(q)||φ(k)||v|, or whose state's Σ|φ(k)||v|, without decays and relative to the largest scale
    leaves the range of the arithmetic (3.4 · 10³⁸ in float32) may be inf or NaN, although the
    quotient would be smaller; rows in which such values count exactly 0, after a strong decay, are
    right. Beside decays of features the same holds in the native engine for gradients of q and of
    log_decay where Σ|φ(k)||v|, times those of the outputs, is beyond 10²⁴ in float32. Derivations:
    docs/02_kernel_trick.md.

    >>> import numpy as np, kerneltrick as kt
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 4, 2, 1000, 16))  # batch 4, 2 heads
    >>> kt.linear_attention(q, k, v, "elu", causal=True).shape
    (4, 2, 1000, 16)
    >>> mixed = kt.linear_attention(q, k, v, "elu", causal=True, window=(64, None))
    >>> bool((mixed[:, 1:] == kt.softmax_attention(q, k, v, causal=True)[:, 1:]).all())
    True
    """
    options = Options(
        causal,
        scale,
        log_decay,
        normalize,
        mask,
        query_mask,
        segment_ids,
        positions,
        state,
        window,
        sinks,
        far,
        on_zero,
        chunk_size,
        return_state,
    )
    return run_attention("linear_attention", q, k, v, feature_map, options, engine)


@untranslated
def run_attention(
    who: str,
    q: Array,
    k: Array,
    v: Array,
    feature_map: Setting,
    options: Options,
    engine: str,
) -> Array | tuple[Array, State]:
    """The output, and the state if `options` ask for it."""
    if not by_head(feature_map, options.window, options.sinks):
        return _run(who, q, k, v, feature_map, options, engine)
    calls = split_call(who, q, k, v, feature_map, options)
    made = [
        _run(who, *call.arrays, call.group.dial, call.options, engine, call.group) for call in calls
    ]
    return together(calls, made, options.return_state)


def _run(
    who: str,
    q: Array,
    k: Array,
    v: Array,
    feature_map: Setting,
    options: Options,
    engine: str,
    group: HeadGroup | None = None,
) -> Any:
    """`run_attention` where all heads, or these of a call, attend alike."""
    call = check_call(who, q, k, v, feature_map, options)
    result = engines.run(engine, call.rule, call.data)
    report_zero(call, result.zero, group=group)
    output = result.output[..., :0, :] if call.padded[0] else result.output
    output = astype(call.inputs.restore(output), v.dtype)
    if not options.return_state:
        return output
    return output, _state_after(call, result.carry, options.state)


@with_keywords_of(linear_attention, AttentionKeywords)
def attention_weights(
    q: Annotated[Array, "(..., H_q, n_q, d) or (n_q, d)"],
    k: Annotated[Array, "(..., H, n, d) or (n, d)"],
    feature_map: maps.MapLike | Dial | Rule = "elu",
    *,
    rows: Any = None,
    **keywords: Unpack[AttentionKeywords],
) -> Annotated[Array, "(..., H_q, rows, n)"]:
    """The weights that linear attention implies: Aᵢⱼ = φ(qᵢ)·φ(kⱼ) / Σ_l φ(qᵢ)·φ(k_l).

    Takes the keywords of `linear_attention`. `rows` (a number or a list of query indices) gives
    only those rows, (..., heads, len(rows), n), in O(n) each, without forming the others. With a
    `state`, what it remembers counts in the sum, so rows add up to less than 1.

    >>> import numpy as np, kerneltrick as kt
    >>> q, k = np.random.default_rng(0).standard_normal((2, 5000, 16))
    >>> a = kt.attention_weights(q, k, "elu", causal=True, rows=[10, 4999])
    >>> a.shape, np.allclose(a.sum(-1), 1), bool((a[0, 11:] == 0).all())
    ((2, 5000), True, True)
    """
    options = read_options("attention_weights", keywords, AttentionKeywords)
    return weights_of("attention_weights", q, k, feature_map, options, rows)


@untranslated
def weights_of(
    who: str,
    q: Array,
    k: Array,
    feature_map: Setting,
    options: Options,
    rows: Any = None,
) -> Array:
    if not by_head(feature_map, options.window, options.sinks):
        return _weights(who, q, k, feature_map, options, rows)
    v = namespace(q=q, k=k).zeros_like(k[..., :1]) if k.ndim >= 1 else k
    calls = split_call(who, q, k, v, feature_map, options)
    made = [
        _weights(who, call.q, call.k, call.group.dial, call.options, rows, call.group)
        for call in calls
    ]
    return together(calls, made)


def _weights(
    who: str,
    q: Array,
    k: Array,
    feature_map: Setting,
    options: Options,
    rows: Any,
    group: HeadGroup | None = None,
) -> Array:
    """`weights_of` where all heads, or these of a call, attend alike."""
    xp, state = namespace(q=q, k=k), options.state
    v = xp.zeros_like(k[..., :1]) if k.ndim >= 1 else k
    if isinstance(state, State):  # the width of the values remembered does not matter to weights
        width = state.parts[0].sums.hi.shape[-1] - 1
        v = zeros((*k.shape[:-1], width), k, k.dtype)
    call = check_call(who, q, k, v, feature_map, options)
    n_q, n = q.shape[-2], k.shape[-2]
    chosen = check_rows(rows, n_q)
    picked = dense_rows(call.rule, call.data, chosen if n_q else np.zeros(1, dtype=np.int64))
    weights = normalized_weights(call, picked, picked.weights, chosen, group)
    weights = call.inputs.restore(astype(weights[..., :n], q.dtype))
    return weights if n_q else weights[..., :0, :]


def normalized_weights(
    call: CheckedCall,
    rows: DenseRows,
    weights: Array,
    numbers: Any,
    group: HeadGroup | None = None,
) -> Array:
    """Weights (..., H, g, r, n) of rows as the caller sees them, (..., H·g, r, n)."""
    xp = call.inputs.xp
    keep = rows.queries.keep
    lead = (*weights.shape[:-4], weights.shape[-4] * weights.shape[-3])
    flags = [rows.queries.bad, _bad_keys(rows.keys.bad, xp)]
    if call.rule.normalize:
        total = xp.sum(weights, axis=-1, keepdims=True) + rows.state[..., -1:]
        zero = empty = vanishes(total, total.dtype)
        zero = zero if keep is None else zero & keep
        flags[1] = None if rows.bad is None else rows.bad[..., -1:]
        for flag in flags:
            zero = zero if flag is None else zero & ~flag
        report_zero(call, xp.reshape(zero, (*lead, zero.shape[-2], 1)), numbers, group)
        weights = weights / xp.where(empty, xp.ones_like(total), total)
        weights = xp.where(empty, xp.full_like(weights, call.rule.zero_fill), weights)
    else:
        logs = [x for x in (rows.queries.log_scale, rows.reference) if x is not None]
        weights = times(xp.exp(sum(logs)), weights, xp) if logs else weights
    for flag in flags:
        if flag is not None:
            weights = xp.where(flag, xp.full_like(weights, math.nan), weights)
    if keep is not None:
        weights = xp.where(keep, weights, xp.zeros_like(weights))
    return xp.reshape(weights, (*lead, *weights.shape[-2:]))


def _bad_keys(bad: Array | None, xp: Any) -> Array | None:
    return None if bad is None else xp.expand_dims(bad[..., -1:].mT, axis=-3)


def check_rows(rows: Any, n_q: int) -> np.ndarray[Any, Any]:
    if rows is None:
        return np.arange(n_q)
    chosen = np.atleast_1d(np.asarray(rows))
    if chosen.ndim != 1 or (chosen.size and chosen.dtype.kind not in "iu"):
        raise TypeError(f"rows must be a number or a list of query indices, not {rows!r}")
    chosen = chosen.astype(np.int64)
    outside = chosen[(chosen < -n_q) | (chosen >= n_q)]
    if outside.size:
        raise IndexError(f"row {outside[0]} is outside the {n_q} queries")
    return np.where(chosen < 0, chosen + n_q, chosen)


def _state_after(call: CheckedCall, carry: Carry, before: State | None) -> State:
    start = 0 if before is None else before.start
    stop = (0 if before is None else before.stop) + call.inputs.k.shape[-2]
    if call.padded[1]:  # the masked token that stood in for none is not to take a slot
        carry = carry._replace(near=call.data.carry.near)
    return state_of(carry, start, stop, call.fingerprint, call.rule, call.inputs.headless)
