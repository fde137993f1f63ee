"""Linear attention: checks arguments, picks an engine."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple, overload

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import (
    Array,
    as_numpy,
    astype,
    compute_dtype,
    constant,
    is_concrete,
    is_floating,
    jit,
    namespace,
    static_start,
    zeros,
)
from kerneltrick.attention._arguments import (
    Inputs,
    VanishingNormalizerError,
    check_causal,
    check_count,
    check_inputs,
    check_on_zero,
    check_scale,
    token_array,
)
from kerneltrick.attention._state import State, carry_of, fingerprint, known_int, state_of
from kerneltrick.engines import (
    ENGINES,
    Carry,
    Data,
    DenseRows,
    Plan,
    dense_rows,
    empty_carry,
    supports,
    times,
)

OnZero = Literal["raise", "nan", "zero"]
Positions = Array | tuple[Array, Array]


class Call(NamedTuple):
    """A checked call: what engines need, and what turns their result into the caller's."""

    inputs: Inputs
    plan: Plan
    data: Data
    raises: bool
    on_zero: OnZero | None
    fingerprint: str
    padded: tuple[bool, bool]  # a masked token stands in for an empty axis of queries, of keys


@overload
def linear_attention(
    q: Array,
    k: Array,
    v: Array,
    feature_map: maps.MapLike = ...,
    *,
    causal: bool = ...,
    scale: float | None = ...,
    log_decay: Any = ...,
    normalize: bool = ...,
    mask: Array | None = ...,
    query_mask: Array | None = ...,
    segment_ids: Array | None = ...,
    positions: Positions | None = ...,
    state: State | None = ...,
    return_state: Literal[False] = ...,
    on_zero: OnZero | None = ...,
    chunk_size: int = ...,
    engine: str = ...,
) -> Array: ...


@overload
def linear_attention(
    q: Array,
    k: Array,
    v: Array,
    feature_map: maps.MapLike = ...,
    *,
    causal: bool = ...,
    scale: float | None = ...,
    log_decay: Any = ...,
    normalize: bool = ...,
    mask: Array | None = ...,
    query_mask: Array | None = ...,
    segment_ids: Array | None = ...,
    positions: Positions | None = ...,
    state: State | None = ...,
    return_state: Literal[True],
    on_zero: OnZero | None = ...,
    chunk_size: int = ...,
    engine: str = ...,
) -> tuple[Array, State]: ...


def linear_attention(
    q: Array,
    k: Array,
    v: Array,
    feature_map: maps.MapLike = "elu",
    *,
    causal: bool = False,
    scale: float | None = None,
    log_decay: Any = None,
    normalize: bool = True,
    mask: Array | None = None,
    query_mask: Array | None = None,
    segment_ids: Array | None = None,
    positions: Positions | None = None,
    state: State | None = None,
    return_state: bool = False,
    on_zero: OnZero | None = None,
    chunk_size: int = 64,
    engine: str = "auto",
) -> Array | tuple[Array, State]:
    """oᵢ = φ(qᵢ)ᵀU / φ(qᵢ)ᵀZ with U = Σφ(kⱼ)vⱼᵀ, Z = Σφ(kⱼ): attention in O(n) (j ≤ i if causal).

    Parameters
    ----------
    q, k, v
        (..., heads, n, d) or (n, d), of any array library; v may have another width. Fewer heads
        in k and v are shared: query head h uses key head h // (H_q / H_kv).
    feature_map
        A name such as "elu" or "favor:features=256", a `FeatureMap`, or a function x → φ(x).
    causal
        Token i sees tokens j ≤ i, and what `state` remembers. Otherwise every query sees every key.
    scale
        q and k are multiplied by √scale before φ. None: 1/√d for maps that stand for softmax
        (favor, taylor, hedgehog), else 1.
    log_decay
        ≤ 0; the state is multiplied by exp(log_decay) before each token. A number, (H_kv,), one
        per token (..., H_kv, n), or one per token and feature (..., H_kv, n, m). Causal only.
    normalize
        Divide by φ(q)ᵀZ.
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
    is 0. Derivations: docs/02_kernel_trick.md.

    >>> import numpy as np, kerneltrick as kt
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 4, 2, 1000, 16))  # batch 4, 2 heads
    >>> kt.linear_attention(q, k, v, "elu", causal=True).shape
    (4, 2, 1000, 16)
    """
    call = check_call(
        "linear_attention", q, k, v, feature_map, causal, scale, log_decay, normalize, mask,
        query_mask, segment_ids, positions, state, on_zero, chunk_size,
    )  # fmt: skip
    if engine != "auto" and engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; use auto, {', '.join(ENGINES)}")
    if engine == "auto":
        engine = "native" if supports(call.plan, call.data) else "chunked"
    run = ENGINES[engine]
    result = jit(run, call.plan, call.data, call.inputs.q, call.plan.feature_map.weighted)
    report_zero(call, result.zero)
    output = result.output[..., :0, :] if call.padded[0] else result.output
    output = call.inputs.restore(output)
    if not return_state:
        return output
    return output, _state_after(call, result.carry, state)


def attention_weights(
    q: Array,
    k: Array,
    feature_map: maps.MapLike = "elu",
    *,
    rows: Any = None,
    causal: bool = False,
    scale: float | None = None,
    log_decay: Any = None,
    normalize: bool = True,
    mask: Array | None = None,
    query_mask: Array | None = None,
    segment_ids: Array | None = None,
    positions: Positions | None = None,
    state: State | None = None,
    on_zero: OnZero | None = None,
) -> Array:
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
    xp = namespace(q=q, k=k)
    v = xp.zeros_like(k[..., :1]) if k.ndim >= 1 else k
    if isinstance(
        state, State
    ):  # the width of the values remembered does not matter to the weights
        v = zeros((*k.shape[:-1], state.sums.hi.shape[-1] - 1), k, k.dtype)
    call = check_call(
        "attention_weights", q, k, v, feature_map, causal, scale, log_decay, normalize, mask,
        query_mask, segment_ids, positions, state, on_zero, 1,
    )  # fmt: skip
    n_q, n = q.shape[-2], k.shape[-2]
    chosen = _check_rows(rows, n_q)
    picked = dense_rows(call.plan, call.data, chosen if n_q else np.zeros(1, dtype=np.int64))
    weights = normalized_weights(call, picked, picked.weights, chosen)
    weights = call.inputs.restore(astype(weights[..., :n], q.dtype))
    return weights if n_q else weights[..., :0, :]


def normalized_weights(call: Call, rows: DenseRows, weights: Array, numbers: Any) -> Array:
    """Weights (..., H, g, r, n) of rows as the caller sees them, (..., H·g, r, n)."""
    xp = call.inputs.xp
    keep = rows.queries.keep
    lead = (*weights.shape[:-4], weights.shape[-4] * weights.shape[-3])
    flags = [rows.queries.bad, _bad_keys(rows.keys.bad, xp)]
    if call.plan.normalize:
        total = xp.sum(weights, axis=-1, keepdims=True) + rows.state[..., -1:]
        zero = empty = total == 0
        zero = zero if keep is None else zero & keep
        flags[1] = None if rows.bad is None else rows.bad[..., -1:]
        for flag in flags:
            zero = zero if flag is None else zero & ~flag
        report_zero(call, xp.reshape(zero, (*lead, zero.shape[-2], 1)), numbers)
        weights = weights / xp.where(empty, xp.ones_like(total), total)
        weights = xp.where(empty, xp.full_like(weights, call.plan.zero_fill), weights)
    elif rows.queries.log_scale is not None and rows.reference is not None:
        factor = xp.exp(rows.queries.log_scale + rows.reference)
        weights = times(factor, weights, xp)
    for flag in flags:
        if flag is not None:
            weights = xp.where(flag, xp.full_like(weights, math.nan), weights)
    if keep is not None:
        weights = xp.where(keep, weights, xp.zeros_like(weights))
    return xp.reshape(weights, (*lead, *weights.shape[-2:]))


def _bad_keys(bad: Array | None, xp: Any) -> Array | None:
    return None if bad is None else xp.expand_dims(bad[..., -1:].mT, axis=-3)


def _check_rows(rows: Any, n_q: int) -> np.ndarray[Any, Any]:
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


def check_call(
    who: str,
    q: Array,
    k: Array,
    v: Array,
    feature_map: maps.MapLike,
    causal: bool,
    scale: float | None,
    log_decay: Any,
    normalize: bool,
    mask: Array | None,
    query_mask: Array | None,
    segment_ids: Array | None,
    positions: Positions | None,
    state: State | None,
    on_zero: OnZero | None,
    chunk_size: int,
) -> Call:
    inputs = check_inputs(who, q, k, v)
    xp = inputs.xp
    chosen = maps.get(feature_map)
    if inputs.headless and isinstance(chosen, maps.Custom):
        chosen = maps.Custom(chosen.function, flat=True)
    check_causal(who, inputs, causal)
    check_on_zero(on_zero)
    d = q.shape[-1]
    scale = chosen.default_scale(d) if scale is None else check_scale(who, scale)
    chunk_size = check_count(who, "chunk_size", chunk_size, least=1)
    causal, normalize = bool(causal), bool(normalize)
    if causal and query_mask is not None:
        raise ValueError(f"causal {who} has one mask for queries and keys: use mask=")
    if not causal:
        for name, given in (("log_decay", log_decay), ("segment_ids", segment_ids)):
            if given is not None:
                raise ValueError(f"{name} needs causal=True: full attention has no order of tokens")
    if state is not None and not isinstance(state, State):
        raise TypeError(f"state must be a State, not {type(state).__name__}")
    start = 0 if state is None else state.stop
    zero_fill = 0.0 if on_zero == "zero" else math.nan
    plan = Plan(chosen, scale, causal, normalize, zero_fill, chunk_size, static_start(start, q))

    q_positions, k_positions = _positions(positions, inputs)
    mask = token_array("mask", mask, inputs.k, "bool")
    query_mask = token_array("query_mask", query_mask, inputs.q, "bool")
    restart = _restarts(segment_ids, inputs)
    probe = empty_carry(plan, inputs.k, inputs.v)
    decay = _decay(log_decay, inputs, probe.sums.hi.shape[-2])
    width = decay.shape[-1] if decay is not None else int(restart is not None)
    carry = empty_carry(plan, inputs.k, inputs.v, width) if width else probe
    print_ = fingerprint(chosen, scale, d, carry)
    if state is not None:
        carry = carry_of(state, carry, print_, inputs.headless)
    _check_horizon(chosen, state, positions, inputs, restart)
    data = Data(
        inputs.q, inputs.k, inputs.v, mask, query_mask, decay, restart, q_positions, k_positions,
        start, carry,
    )  # fmt: skip
    data, padded = _pad_empty(data, causal, xp)
    raises = normalize and (on_zero == "raise" or on_zero is None)
    return Call(inputs, plan, data, raises, on_zero, print_, padded)


def _positions(positions: Positions | None, inputs: Inputs) -> tuple[Array | None, Array | None]:
    if positions is None:
        return None, None
    pair = positions if isinstance(positions, tuple) else (positions, positions)
    if len(pair) != 2:
        raise ValueError(f"positions must be an array or a pair of arrays, not {len(pair)} arrays")
    names = ("positions", "positions") if pair[0] is pair[1] else ("positions[0]", "positions[1]")
    return (
        token_array(names[0], pair[0], inputs.q, "number"),
        token_array(names[1], pair[1], inputs.k, "number"),
    )


def _check_horizon(
    feature_map: maps.FeatureMap,
    state: State | None,
    positions: Positions | None,
    inputs: Inputs,
    restart: Array | None,
) -> None:
    """Ask the map whether it can serve tokens as far apart as these."""
    longest = max(inputs.q.shape[-2], inputs.k.shape[-2])
    before = (0, 0) if state is None else (known_int(state.start), known_int(state.stop))
    if longest == 0 or before[0] is None or before[1] is None:
        return
    first, last = before[0], before[1] + longest - 1
    if positions is not None:
        pair = positions if isinstance(positions, tuple) else (positions,)
        if not all(is_concrete(x) for x in pair):
            return
        values = np.concatenate([as_numpy(x).ravel() for x in pair])
        lowest = float(values.min())
        first = int(lowest if state is None else min(lowest, first))
        last = int(values.max())
    elif restart is not None and is_concrete(restart):
        flags = as_numpy(restart)[..., 0].reshape(-1, longest)
        last = first
        for row in flags:  # the longest segment; the first one continues the state
            edges = np.concatenate([[0], np.flatnonzero(row), [longest]])
            spans = np.diff(edges)
            spans[0] += before[1] - before[0]
            last = max(last, first + int(spans.max()) - 1)
    feature_map.check_positions(first, last)


def _restarts(segment_ids: Array | None, inputs: Inputs) -> Array | None:
    """True at tokens where a new segment begins; the first token never restarts."""
    ids = token_array("segment_ids", segment_ids, inputs.k, "integer")
    if ids is None:
        return None
    changed = ids[..., 1:, :] != ids[..., :-1, :]
    first = inputs.xp.zeros_like(ids[..., :1, :], dtype=inputs.xp.bool)
    return inputs.xp.concat([first, changed], axis=-2) if ids.shape[-2] else first


def _decay(log_decay: Any, inputs: Inputs, m: int) -> Array | None:
    """log_decay as (..., H, n, 1 or m)."""
    if log_decay is None:
        return None
    k, xp = inputs.k, inputs.xp
    per_token = tuple(k.shape[:-1])
    dtype = compute_dtype(k)
    if isinstance(log_decay, (int, float, np.number)):
        log_decay = constant(np.asarray(float(log_decay)), k, dtype)
    namespace(k=k, log_decay=log_decay)
    if not is_floating(log_decay):
        raise TypeError(f"log_decay must be floating-point, not {log_decay.dtype}")
    if is_concrete(log_decay):
        values = as_numpy(log_decay)
        wrong = values[~(np.isfinite(values) & (values <= 0))]
        if wrong.size:
            raise ValueError(
                f"log_decay must be finite and ≤ 0 (the state is multiplied by its exponential), "
                f"but {wrong.flat[0]} is among its values"
            )
    shape = tuple(log_decay.shape)
    known = per_token[1:] if inputs.headless else per_token
    heads = () if inputs.headless else (per_token[-2],)
    decay = astype(log_decay, dtype)
    if shape == (*known, m) and (shape != known):
        return decay[None, ...] if inputs.headless else decay
    if shape == known:
        return decay[None, ..., None] if inputs.headless else decay[..., None]
    if shape in ((), (1,), heads):
        if shape:
            decay = decay[:, None, None]
        return xp.broadcast_to(decay, (*per_token, 1))
    raise ValueError(
        f"log_decay must be a number, one per key head {heads}, one per token {known}, or one per "
        f"token and feature {(*known, m)}, not an array {shape}"
    )


def _pad_empty(data: Data, causal: bool, xp: Any) -> tuple[Data, tuple[bool, bool]]:
    """One masked token in place of an empty axis, so that engines always have one."""
    no_queries, no_keys = data.q.shape[-2] == 0, data.k.shape[-2] == 0

    def one(x: Array | None) -> Array | None:
        if x is None:
            return None
        return zeros((*x.shape[:-2], 1, x.shape[-1]), x, x.dtype)

    hidden = zeros((*(1,) * (data.k.ndim - 2), 1, 1), data.k, xp.bool)
    if no_keys:
        data = data._replace(
            k=one(data.k),
            v=one(data.v),
            mask=hidden,
            log_decay=one(data.log_decay),
            restart=None,
            k_positions=one(data.k_positions),
        )
    if no_queries:
        data = data._replace(
            q=one(data.q),
            q_positions=one(data.q_positions),
            query_mask=None if causal else hidden,
        )
    return data, (no_queries, no_keys)


def report_zero(call: Call, zero: Array | None, rows: Any = None) -> None:
    if not call.raises or zero is None:
        return
    if not is_concrete(zero):
        if call.on_zero is None:
            return
        raise ValueError(
            'on_zero="raise" needs values that can be looked at; in traced or device code use '
            '"nan" or "zero"'
        )
    flags = as_numpy(zero)[..., 0]
    if not flags.any():
        return
    where = [int(x) for x in np.argwhere(flags)[0]]
    if rows is not None:
        where[-1] = int(rows[where[-1]])
    index = where[1:] if call.inputs.headless else where
    chosen = call.plan.feature_map
    mask = call.data.mask
    if call.padded[1] or (mask is not None and not as_numpy(mask).any(axis=-2).all()):
        reason = "there is no key that it may see; check mask"
    else:
        reason = {
            "positive": "is positive, so features underflow; use a wider dtype, smaller inputs",
            "non-negative": "is non-negative, not positive; choose a positive map",
            "any": "has similarities of any sign, which can cancel; choose a positive map",
        }[chosen.sign]
        reason = f"{chosen} {reason}"
    count = int(flags.sum())
    raise VanishingNormalizerError(
        f"the weights of {count} {'query sums' if count == 1 else 'queries sum'} to exactly 0, the "
        f'first at index {tuple(index)}: {reason}, or pass on_zero="nan" or "zero"'
    )


def _state_after(call: Call, carry: Carry, before: State | None) -> State:
    start = 0 if before is None else before.start
    stop = (0 if before is None else before.stop) + call.inputs.k.shape[-2]
    return state_of(carry, start, stop, call.fingerprint, call.inputs.headless)
