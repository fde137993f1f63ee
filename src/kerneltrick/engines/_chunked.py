"""Linear attention by chunks: inside a chunk a small masked n×n product, between chunks the state.

With C the chunk length, all sums over at most C tokens are matrix products in the arithmetic of
the inputs, and the state is carried from chunk to chunk in wide sums. Chunks are taken several at
a time, so that the products are batched; that does not change the numbers. Every chunk has full
length (the last one is padded with masked tokens), so no output depends on how long the sequence
is, and every weight above the diagonal is selected away, never multiplied by zero.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kerneltrick._arrays import (
    Array,
    Namespace,
    astype,
    compute_dtype,
    constant,
    is_looped,
    scan,
    space,
    static_start,
    stop_gradient,
    swap_axes,
    wide_add,
    wide_narrow,
    zeros,
)
from kerneltrick.engines._near import running_max
from kerneltrick.engines._problem import (
    Carry,
    Data,
    Keys,
    Queries,
    Result,
    Rule,
    add_decay,
    block_positions,
    both,
    either,
    finish,
    prepare_keys,
    prepare_queries,
    safe,
    times,
)
from kerneltrick.engines._sweep import sweep

FLOAT32_SPAN = 64  # float32 sums span at most this many tokens
FEATURE_DECAY_SPAN = 16  # with a decay per feature, weights are sums over m of C² products
MOST_CHUNKS = 16  # taken at once
BLOCK_NUMBERS = 1 << 19  # numbers in the largest temporary of one group of chunks


def chunked(rule: Rule, data: Data) -> Result:
    """All chunks in order; the memory used beyond inputs and outputs does not grow with n."""
    if not rule.all_far:
        return sweep(rule, data, _sizes(rule, data)[0])
    return _causal(rule, data) if rule.causal else _full(rule, data)


def _causal(rule: Rule, data: Data) -> Result:
    heads, n = data.k.shape[-3], data.k.shape[-2]
    chunk, group = _sizes(rule, data)
    offset = static_start(data.start, data.k, n) % chunk

    def body(carry: Carry, blocks: Any, first: Any, valid: Array | None) -> Any:
        q, k, v, mask, log_decay, restart, q_positions, k_positions = blocks
        keep = both(mask, valid)
        where_q = block_positions(q_positions, data.start, first, q.shape[-2], q)
        where_k = block_positions(k_positions, data.start, first, k.shape[-2], k)
        keys = prepare_keys(rule, k, v, keep, log_decay, restart, where_k)
        queries = prepare_queries(rule, q, keep, where_q, heads)
        carry, mixed, reference, bad = _rows(carry, keys, queries, chunk)
        return carry, finish(rule, mixed, reference, queries, bad, v.dtype)

    streams = (
        data.q,
        data.k,
        data.v,
        data.mask,
        data.log_decay,
        data.restart,
        data.q_positions,
        data.k_positions,
    )
    carry, (output, zero) = scan(
        body, data.carry, streams, length=n, block=chunk * group, offset=offset
    )
    return Result(output, zero, carry)


def _full(rule: Rule, data: Data) -> Result:
    heads, n, n_q = data.k.shape[-3], data.k.shape[-2], data.q.shape[-2]
    chunk, group = _sizes(rule, data)

    def absorb(carry: Carry, blocks: Any, first: Any, valid: Array | None) -> Any:
        k, v, mask, positions = blocks
        where = block_positions(positions, data.start, first, k.shape[-2], k)
        keys = prepare_keys(rule, k, v, both(mask, valid), None, None, where)
        return _absorb(carry, keys, chunk), ()

    keys_in = (data.k, data.v, data.mask, data.k_positions)
    offset = static_start(data.start, data.k, n) % chunk
    carry, _ = scan(absorb, data.carry, keys_in, length=n, block=chunk * group, offset=offset)

    def read(carry: Carry, blocks: Any, first: Any, valid: Array | None) -> Any:
        q, mask, positions = blocks
        xp = space(q)
        where = block_positions(positions, data.start, first, q.shape[-2], q)
        queries = prepare_queries(rule, q, both(mask, valid), where, heads)
        sums = wide_narrow(carry.sums, queries.features.dtype)
        mixed = queries.features @ xp.expand_dims(sums, axis=-3)
        reference, bad = _per_query(carry.log_scale, xp), _per_query(carry.bad, xp)
        return carry, finish(rule, mixed, reference, queries, bad, data.v.dtype)

    queries_in = (data.q, data.query_mask, data.q_positions)
    carry, (output, zero) = scan(read, carry, queries_in, length=n_q, block=chunk * group)
    return Result(output, zero, carry)


def _per_query(x: Array | None, xp: Namespace) -> Array | None:
    return None if x is None else xp.expand_dims(x, axis=-3)


def _sizes(rule: Rule, data: Data) -> tuple[int, int]:
    """The chunk length, and how many chunks to take at once (which changes no number)."""
    xp = space(data.q)
    chunk = rule.chunk_size
    if compute_dtype(data.q) != xp.float64:
        chunk = min(chunk, FLOAT32_SPAN)
    if data.log_decay is not None and data.log_decay.shape[-1] > 1:
        chunk = min(chunk, FEATURE_DECAY_SPAN)
    longest = max(data.q.shape[-2], data.k.shape[-2])
    if is_looped(data.q, longest):  # whose steps cost nothing
        return chunk, 1
    m, width = data.carry.sums.hi.shape[-2:]
    rows = math.prod(data.q.shape[:-2])
    largest = rows * max(chunk * max(m, width, chunk), m * width)
    chunks = -(-(longest + static_start(data.start, data.k, longest) % chunk) // chunk)
    most = max(1, min(MOST_CHUNKS, BLOCK_NUMBERS // max(largest, 1)))
    groups = -(-chunks // most)
    return chunk, max(1, -(-chunks // max(groups, 1)))


class _Weights(NamedTuple):
    """The factors that log-decays and log-scales put on products within and between chunks.

    Shapes (..., H, chunks, C, ·) with · = 1, or m if the decay is per feature. None stands for 1.
    """

    pair: Array | None  # (..., C, C, ·): key j in row i
    entry: Array | None  # (..., C, ·): the state before the chunk, in row i
    leave: Array | None  # (..., C, ·): key j in the state after the chunk
    through: Array | None  # (..., 1, ·): the state before in the state after
    forgotten: Array | None  # (..., C, 1) bool: `entry` is 0, so row i does not see the state
    reference: Array | None  # (..., C, 1): the log-scale of row i
    log_scale: Array | None  # (..., 1, 1) of the last chunk: the log-scale of the state after
    log_decay: Array | None  # (..., 1, ·) per chunk: the log-decay over the chunk


def _factors(
    carry: Carry, log_decay: Array | None, log_scale: Array | None, xp: Namespace, dtype: Any
) -> _Weights:
    """log_decay and log_scale are (..., H, chunks, C, ·); the factors come in `dtype`.

    All exponents are ≤ 0: decays are summed between j and i (never divided out of cumulative
    products), and scales are relative to the largest one that row i can see, as in online softmax.
    """
    if log_decay is None and log_scale is None:
        return _Weights(None, None, None, None, None, None, None, None)
    some = log_decay if log_decay is not None else log_scale
    assert some is not None
    size = some.shape[-2]
    past = constant(np.tri(size, dtype=bool)[:, :, None], some, xp.bool)  # j ≤ i, (C, C, 1)
    zero = xp.zeros_like(some[..., :1])
    between, since = zero[..., None, :], zero  # Σ log-decay over (j, i], and up to and with i
    if log_decay is not None:
        between, since = summed_decays(log_decay, xp)
    reference = after = None
    before = xp.zeros_like(zero[..., :1, :])
    if log_scale is not None:
        assert carry.log_scale is not None
        slowest = xp.max(between, axis=-1, keepdims=True)
        seen = slowest + log_scale[..., None, :, :]
        seen = xp.where(past, seen, xp.full_like(seen, -math.inf))
        # A reference only: constant to gradients, as it cancels from every result.
        own = stop_gradient(xp.max(seen, axis=-2))  # (..., C, 1): the largest scale in row i
        slowest_since = stop_gradient(xp.max(since, axis=-1, keepdims=True))
        starts, scale = [], carry.log_scale
        for c in range(own.shape[-3]):
            starts.append(scale)
            scale = xp.maximum(scale + slowest_since[..., c, -1:, :], own[..., c, -1:, :])
        before = xp.stack(starts, axis=-3)
        reference = xp.maximum(before + slowest_since, own)
        after = scale
    low = safe(reference, xp) if reference is not None else zero
    exponent = (
        between if log_scale is None else between + (log_scale[..., None, :, :] - low[..., None, :])
    )
    exponent = xp.where(past, exponent, xp.full_like(exponent, -math.inf))
    pair = xp.exp(astype(exponent, dtype))
    entry = xp.exp(astype(since + (before - low), dtype))
    return _Weights(
        pair=pair,
        entry=entry,
        leave=pair[..., -1, :, :],
        through=xp.exp(since[..., -1:, :] + (before - low[..., -1:, :])),
        forgotten=xp.max(entry, axis=-1, keepdims=True) == 0,
        reference=reference,
        log_scale=after,
        log_decay=None if log_decay is None else since[..., -1:, :],
    )


def summed_decays(log_decay: Array, xp: Namespace) -> tuple[Array, Array]:
    """Σ log-decay over (j, i], (..., C, C, ·), and up to and with i, (..., C, ·), of a chunk.

    Each is a sum of its own, not a difference of sums: a decay may be −inf, and a strong one would
    swallow the weak ones after it.
    """
    size = log_decay.shape[-2]
    later = constant(np.tri(size, k=-1, dtype=bool)[:, :, None], log_decay, xp.bool)  # j < l
    steps = log_decay[..., :, None, :]
    with np.errstate(over="ignore"):  # −inf decays as much
        between = xp.cumulative_sum(xp.where(later, steps, xp.zeros_like(steps)), axis=-3)
        return between, xp.cumulative_sum(log_decay, axis=-2)


def split(x: Array | None, chunk: int, xp: Namespace) -> Array | None:
    """(..., tokens, e) → (..., chunks, C, e)."""
    if x is None:
        return None
    return xp.reshape(x, (*x.shape[:-2], x.shape[-2] // chunk, chunk, x.shape[-1]))


def _by_chunk(x: Array | None, chunk: int, xp: Namespace) -> Array | None:
    """Query side (..., g, tokens, e) → (..., chunks, g, C, e)."""
    found = split(x, chunk, xp)
    return None if found is None else swap_axes(found, -4, -3)


def _pass_on(
    carry: Carry, own: Array, weights: _Weights, bad: Array | None, xp: Namespace, dtype: Any
) -> tuple[Carry, Array]:
    """Add the sums (..., chunks, m, M+1) of the chunks in order; also those before each chunk."""
    sums, total = carry.sums, carry.log_decay
    before = []
    for c in range(own.shape[-3]):
        before.append(wide_narrow(sums, dtype))
        factor = None if weights.through is None else weights.through[..., c, :, :].mT
        sums = wide_add(sums, own[..., c, :, :], factor)
        if weights.log_decay is not None:
            total = add_decay(total, weights.log_decay[..., c, :, :])
    log_scale = carry.log_scale if weights.log_scale is None else weights.log_scale
    return Carry(sums, log_scale, total, bad), xp.stack(before, axis=-3)


def _rows(
    carry: Carry, keys: Keys, queries: Queries, chunk: int
) -> tuple[Carry, Array, Array | None, Array | None]:
    """Sums for every query row of a group of chunks, and the state after it."""
    xp = space(keys.features)
    phi_k, values = split(keys.features, chunk, xp), split(keys.values, chunk, xp)
    phi_q = _by_chunk(queries.features, chunk, xp)  # (..., chunks, g, C, m)
    assert phi_k is not None
    assert values is not None
    assert phi_q is not None
    groups, m = phi_q.shape[-3], phi_q.shape[-1]
    log_decay, log_scale = (split(x, chunk, xp) for x in (keys.log_decay, keys.log_scale))
    weights = _factors(carry, log_decay, log_scale, xp, phi_k.dtype)
    leaving = phi_k if weights.leave is None else times(phi_k, weights.leave, xp)
    bad, bad_rows = spoiled(carry.bad, keys.bad, keys.log_decay, keys.values, xp)
    after, before = _pass_on(carry, leaving.mT @ values, weights, bad, xp, phi_k.dtype)

    flat = (*phi_q.shape[:-3], groups * chunk, m)
    if weights.pair is not None and weights.pair.shape[-1] > 1:
        # Σ_f φ(qᵢ)_f · (φ(kⱼ)_f · pairᵢⱼ_f): the keys as row i sees them, for all query heads.
        seen = times(phi_k[..., None, :, :], weights.pair, xp)
        inside = swap_axes(swap_axes(phi_q, -3, -2) @ seen.mT, -3, -2)
    else:
        inside = xp.reshape(phi_q, flat) @ phi_k.mT
        inside = xp.reshape(inside, (*phi_q.shape[:-1], chunk))
        if weights.pair is not None:
            inside = times(inside, weights.pair[..., None, :, :, 0], xp)
    inside = xp.tril(inside)  # selects: what is above the diagonal may be NaN or inf

    entering = phi_q
    if weights.entry is not None:
        entering = phi_q * xp.expand_dims(weights.entry, axis=-3)
    mixed = xp.reshape(entering, flat) @ before
    if weights.forgotten is not None:
        gone = xp.expand_dims(weights.forgotten, axis=-3)
        mixed = xp.reshape(mixed, (*phi_q.shape[:-1], mixed.shape[-1]))
        mixed = xp.where(gone, xp.zeros_like(mixed), mixed)
        mixed = xp.reshape(mixed, (*flat[:-1], mixed.shape[-1]))
    mixed = mixed + xp.reshape(inside, (*flat[:-1], chunk)) @ values

    def by_query(x: Array) -> Array:
        """(..., chunks, g or 1, C, e) → (..., g or 1, tokens, e)."""
        x = swap_axes(x, -3, -4)
        return xp.reshape(x, (*x.shape[:-3], x.shape[-3] * x.shape[-2], x.shape[-1]))

    mixed = by_query(xp.reshape(mixed, (*phi_q.shape[:-1], mixed.shape[-1])))
    reference = weights.reference
    if reference is not None:
        reference = by_query(xp.expand_dims(reference, axis=-3))
    return after, mixed, reference, _per_query(bad_rows, xp)


def _absorb(carry: Carry, keys: Keys, chunk: int) -> Carry:
    """The state after a group of chunks, for full attention, where no row is needed."""
    xp = space(keys.features)
    phi_k, values = split(keys.features, chunk, xp), split(keys.values, chunk, xp)
    assert phi_k is not None
    assert values is not None
    weights = _factors(carry, None, split(keys.log_scale, chunk, xp), xp, phi_k.dtype)
    leaving = phi_k if weights.leave is None else times(phi_k, weights.leave, xp)
    bad, _ = spoiled(carry.bad, keys.bad, keys.log_decay, keys.values, xp)
    return _pass_on(carry, leaving.mT @ values, weights, bad, xp, phi_k.dtype)[0]


def spoiled(
    carried: Array | None, bad: Array | None, log_decay: Array | None, values: Array, xp: Namespace
) -> tuple[Array | None, Array | None]:
    """Which columns are NaN after the block (..., 1, M), and in each row (..., tokens, M).

    `carried` says which were before the block, `bad` (..., tokens, M) where a token has made them.
    """
    if bad is None and carried is None:
        return None, None
    shape = values.shape
    bad = zeros(shape, values, xp.bool) if bad is None else bad
    # The last bad token seen by each row, 1-based, against the last restart seen.
    index = constant(np.arange(1, shape[-2] + 1)[:, None], values, values.dtype)
    zero = xp.zeros_like(values)
    last_bad = running_max(xp.where(bad, index + zero, zero), xp)
    seen = last_bad > 0
    if log_decay is not None:
        fresh = xp.max(log_decay, axis=-1, keepdims=True) == -math.inf
        restarted = running_max(xp.where(fresh, index + zero[..., :1], zero[..., :1]), xp)
        seen = (last_bad > 0) & (last_bad >= restarted)
        if carried is not None:
            carried = carried & (restarted == 0)
    rows = either(seen, carried)
    assert rows is not None
    rows = xp.broadcast_to(rows, shape)
    return rows[..., -1:, :], rows


__all__ = ["chunked"]
