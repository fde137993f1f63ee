"""Near and far: which tokens have their exact weight, how they leave the window, in what units.

Unmasked tokens of a segment are numbered by rank, 0, 1, 2, …: masked ones are as though they were
not there. A key is near where its rank is less than `window` from the query's, or less than
`sinks`; everything else is far. A state holds the near tokens as they are, in `Near`, and the far
ones as sums. Going through a sequence backwards (`ahead`), ranks count down.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from kerneltrick._arrays import (
    Array,
    Wide,
    astype,
    constant,
    index_dtype,
    library,
    space,
    stop_gradient,
    wide,
    wide_add,
    zeros,
)
from kerneltrick.engines._problem import (
    UNBOUNDED,
    Carry,
    Data,
    Near,
    Rule,
    block_positions,
    either,
    prepare_keys,
    safe,
)

SMALLEST = 1e-30  # of a far sum that the reference of a row is taken from
LARGEST = 70.0  # > −log SMALLEST: no exponent of a row is larger, and its exponential is finite


class KeyValues(NamedTuple):
    """Tokens as they were given, (..., H, n, ·)."""

    k: Array
    v: Array
    positions: Array
    keep: Array


def call_tokens(data: Data) -> KeyValues:
    """The tokens of a call, with positions and a mask of full shape."""
    xp, k = space(data.k), data.k
    shape = (*k.shape[:-1], 1)
    where = block_positions(data.k_positions, data.start, 0, k.shape[-2], k)[..., None]
    if data.k_positions is None:
        where = astype(where, index_dtype(k))
    keep = xp.ones_like(k[..., :1], dtype=xp.bool)
    if data.mask is not None:
        keep = xp.broadcast_to(data.mask, shape)
    return KeyValues(k, data.v, xp.broadcast_to(where, shape), keep)


def extended(data: Data) -> tuple[int, Data]:
    """How many tokens the state still holds, and the call with them in front of its own keys."""
    near = data.carry.near
    if near is None or near.k.shape[-2] == 0:
        return 0, data
    xp = space(data.k)
    k, v, positions, keep = concatenated(KeyValues(*near[:4]), call_tokens(data))
    restart = data.restart
    if restart is not None:
        restart = xp.broadcast_to(restart, (*data.k.shape[:-1], 1))
        restart = xp.concat([xp.zeros_like(near.keep), restart], axis=-2)
    made = data._replace(k=k, v=v, mask=keep, k_positions=positions, restart=restart)
    return near.k.shape[-2], made


def ranks(rule: Rule, data: Data, ahead: bool = False) -> tuple[Array, Array]:
    """Ranks (..., H, n, 1) of a call's tokens, as queries and, the state's in front, as keys.

    A token that is masked has the rank that it would have.
    """
    near = data.carry.near
    assert near is not None
    xp, like = space(data.k), data.k
    n, whole = like.shape[-2], index_dtype(like)
    count = near.count
    own = constant(np.arange(n)[:, None], like, whole)
    keep = None
    if data.mask is not None:
        keep = astype(data.mask, whole)
        own = xp.cumulative_sum(keep, axis=-2) - keep
    if data.restart is not None:
        first = xp.where(data.restart, own, xp.zeros_like(own))
        fresh = xp.cumulative_sum(astype(data.restart, whole), axis=-2) > 0
        own = own - running_max(first, xp)
        own = xp.where(fresh, own, own + count)
    elif ahead:
        own = count - own - (1 if keep is None else keep)
    else:
        own = own + count
    return own, xp.concat([near_ranks(rule, near, ahead), own], axis=-2)


def near_ranks(rule: Rule, near: Near, ahead: bool = False) -> Array:
    """The ranks (..., H, t + r, 1) of the tokens that a state still holds."""
    xp, whole, count = space(near.k), near.count.dtype, near.count
    slots = np.arange(near.k.shape[-2] - rule.sinks)[:, None]
    behind = len(slots) - 1 - slots if ahead else slots - len(slots)
    ring = constant(behind, near.k, whole) + count
    sinks = constant(np.arange(rule.sinks)[:, None], near.k, whole) + xp.zeros_like(count)
    return xp.concat([sinks, ring], axis=-2)


def running_max(x: Array, xp: Any) -> Array:
    """Running maximum of non-negative numbers along axis −2, by doubling."""
    size, shift = x.shape[-2], 1
    while shift < size:
        moved = xp.concat([xp.zeros_like(x[..., :shift, :]), x[..., :-shift, :]], axis=-2)
        x = xp.maximum(x, moved)
        shift *= 2
    return x


def is_near(rule: Rule, query: Array | None, key: Array) -> Array:
    """Whether keys of rank (..., n, 1) are near queries of rank (..., r, 1): (..., r or 1, n) bool.

    Queries without ranks are within the window of every key, if there is one.
    """
    xp = space(key)
    if rule.window == UNBOUNDED or (rule.window and query is None):
        return xp.ones_like(key.mT, dtype=xp.bool)
    close = key.mT < rule.sinks
    if rule.window and query is not None:
        close = close | (xp.abs(query - key.mT) < rule.window)
    return close


def after(rule: Rule, data: Data, ahead: bool = False) -> Carry:
    """The state after the tokens of a call: what is near now, and sums that hold all the rest."""
    near = data.carry.near
    assert near is not None
    xp, whole = space(data.k), near.count.dtype
    own, rank = call_tokens(data), ranks(rule, data, ahead)[1]
    count, restarted = near.count, None
    held, kept = near.keep, own.keep
    if data.restart is not None:
        segment = xp.cumulative_sum(astype(data.restart, whole), axis=-2)
        restarted = xp.broadcast_to(segment[..., -1:, :] > 0, count.shape)
        kept = kept & (segment == segment[..., -1:, :])
        held = held & ~restarted
        count = xp.where(restarted, xp.zeros_like(count), count)
    added = xp.sum(astype(kept, whole), axis=-2, keepdims=True)
    count = count - added if ahead else count + added
    tokens = concatenated(KeyValues(*near[:3], held), own._replace(keep=kept))
    mixed = data.mask is not None or data.restart is not None
    # Ahead of a query whose own key is masked there is one token more in the window.
    room = rule.window if ahead else rule.window - 1
    near, leaving = split_near(rule, tokens, rank, count, max(room, 0), mixed)
    return add_to_sums(rule, data.carry, leaving, restarted)._replace(near=near)


def concatenated(first: KeyValues, second: KeyValues) -> KeyValues:
    """Two stretches of tokens as one, in the dtypes of the first."""
    xp = space(first.k)
    pairs = zip(first, second, strict=True)
    return KeyValues._make([xp.concat([a, astype(b, a.dtype)], axis=-2) for a, b in pairs])


def split_near(
    rule: Rule, tokens: KeyValues, rank: Array, count: Array, room: int, mixed: bool
) -> tuple[Near, KeyValues]:
    """The last `room` of the tokens and the sinks, as Near, and what is left for the sums.

    `mixed`: tokens that are not kept may stand among those that are.
    """
    xp, whole, t = space(rank), rank.dtype, rule.sinks
    if mixed:  # those that are kept behind those that are not, each in order
        order = _stable_order(tokens.keep, whole)
        rank = gather(rank, order)
        tokens = KeyValues._make([gather(x, order) for x in tokens])
    size = tokens.k.shape[-2]
    gone = size - min(room, size - t)
    ring = KeyValues._make([x[..., gone:, :] for x in tokens])
    leaving, rank = KeyValues._make([x[..., :gone, :] for x in tokens]), rank[..., :gone, :]
    sinks = KeyValues._make([x[..., :0, :] for x in tokens])
    if t:
        number = constant(np.arange(t)[:, None], rank, whole)
        match = (number == rank.mT) & leaving.keep.mT  # (..., t, gone)
        where = xp.argmax(astype(match, whole), axis=-1, keepdims=True)
        sinks = KeyValues._make([gather(x, astype(where, whole)) for x in leaving])
        sinks = sinks._replace(keep=xp.any(match, axis=-1, keepdims=True))
        leaving = leaving._replace(keep=leaving.keep & (rank >= t))
    return Near(*concatenated(sinks, ring), count=count), leaving


def _stable_order(keep: Array, whole: Any) -> Array:
    """The indices (..., n, 1) of tokens, those that are not kept first."""
    xp = space(keep)
    if library(keep) != "torch":
        return astype(xp.argsort(astype(keep, whole), axis=-2, stable=True), whole)
    # By numbers that all differ, so that any way to sort will do: ONNX has none that is stable.
    size = keep.shape[-2]
    number = constant(np.arange(size)[:, None], keep, whole)
    return (astype(keep, whole) * size + number).argsort(dim=-2)


def gather(x: Array, index: Array) -> Array:
    """x (..., n, e) at index (..., l, 1) of the same leading shape."""
    xp = space(x)
    lead, n, e = x.shape[:-2], x.shape[-2], x.shape[-1]
    if library(x) == "torch":
        return x.gather(-2, index.expand(*index.shape[:-1], e))
    rows = math.prod(lead)
    base = constant(np.arange(rows).reshape(*lead, 1, 1) * n, x, index.dtype)
    flat = xp.reshape(index + base, (rows * index.shape[-2],))
    return xp.reshape(xp.take(xp.reshape(x, (rows * n, e)), flat, axis=0), (*index.shape[:-1], e))


def resized(rule: Rule, near: Near, slots: int) -> Near:
    """Near with so many slots for the window: unused ones come and go in front."""
    xp, t = space(near.k), rule.sinks
    have = near.k.shape[-2] - t
    parts: list[Array] = []
    for x in near[:4]:
        ring = x[..., t + max(have - slots, 0) :, :]
        room = zeros((*x.shape[:-2], max(slots - have, 0), x.shape[-1]), x, x.dtype)
        parts.append(xp.concat([x[..., :t, :], room, ring], axis=-2))
    return Near._make([*parts, near.count])


def add_to_sums(
    rule: Rule, carry: Carry, tokens: KeyValues, restarted: Array | None = None
) -> Carry:
    """The sums with tokens added that are no longer near, in the arithmetic of the sums."""
    xp = space(carry.sums.hi)
    sums, log_scale, log_decay, bad, near = carry
    factor = None
    if restarted is not None:
        factor = astype(~restarted, sums.hi.dtype)
        bad = None if bad is None else bad & ~restarted
        if log_scale is not None:
            log_scale = xp.where(restarted, xp.full_like(log_scale, -math.inf), log_scale)
        if log_decay is not None:
            gone = xp.full_like(log_decay.hi, -math.inf)
            log_decay = Wide(xp.where(restarted, gone, log_decay.hi), log_decay.lo)
    if tokens.k.shape[-2] and sums.hi.shape[-2]:
        keys = prepare_keys(rule, *tokens[:2], tokens.keep, None, None, tokens.positions[..., 0])
        features, values = (astype(x, sums.hi.dtype) for x in (keys.features, keys.values))
        if keys.log_scale is not None:
            assert log_scale is not None
            before = log_scale
            own = xp.max(keys.log_scale, axis=-2, keepdims=True)
            log_scale = stop_gradient(xp.maximum(before, own))
            low = safe(log_scale, xp)
            features = features * astype(xp.exp(keys.log_scale - low), features.dtype)
            factor = xp.exp(before - low)
        sums = wide_add(sums, features.mT @ values, factor)
        if keys.bad is not None:
            bad = either(bad, xp.any(keys.bad, axis=-2, keepdims=True))
    elif factor is not None:
        sums = wide_add(sums, xp.zeros_like(sums.hi), factor)
    return Carry(sums, log_scale, log_decay, bad, near)


class Units(NamedTuple):
    """What near and far weights are multiplied by to be relative to one reference."""

    near: Annotated[Array, "(..., H, g, r, 1)"]
    far: Annotated[Array, "(..., H, g, r, 1)"]
    reference: Annotated[Array, "(..., H, g, r, 1)"]  # the logarithm of the unit


def units(
    rule: Rule,
    gain: Array,
    top: Array,
    far_scale: Array | None,
    query_scale: Array | None,
    far_sum: Array,
) -> Units:
    """One reference for near weights relative to e^top and far ones relative to e^far_scale.

    It is the larger of the two sums' sizes, by the far sums (..., r, M + 1) as they are: a bound
    would make near weights underflow wherever the far ones happen to be 0.
    """
    xp = space(far_sum)
    heads = top.shape[-4]
    shift = xp.reshape(gain, (heads, gain.shape[-3] // heads, 1, 1))
    shift = wide(shift).hi
    if query_scale is not None:
        shift = shift + wide(query_scale).hi
    if far_scale is not None:
        shift = shift + safe(far_scale, xp)
    top_wide = wide(top).hi
    if rule.relative:
        shift = shift + safe(top_wide, xp)
    top_wide = stop_gradient(top_wide)
    far_sum = stop_gradient(far_sum)
    total = xp.abs(far_sum[..., -1:])
    size = xp.where(total == 0, xp.max(xp.abs(far_sum), axis=-1, keepdims=True), total)
    least = xp.full_like(size, SMALLEST)
    largest = wide(xp.log(xp.maximum(size, least))).hi + stop_gradient(shift)
    largest = xp.where(size == 0, xp.full_like(largest, -math.inf), largest)
    reference = xp.maximum(largest, top_wide)
    low = safe(reference, xp)
    exponent = xp.minimum(shift - low, xp.full_like(low, LARGEST))
    return Units(
        astype(xp.exp(top_wide - low), far_sum.dtype),
        astype(xp.exp(exponent), far_sum.dtype),
        reference,
    )


def near_weights(scores: Array, near: Array) -> tuple[Array, Array]:
    """exp(score − top) of near keys, 0 elsewhere, and top, the largest score of each row.

    The first pair that attains it gets the gradient of `top`; as a reference it is constant.
    """
    xp = space(scores)
    scores = xp.where(near, scores, xp.full_like(scores, -math.inf))
    best = xp.argmax(scores, axis=-1, keepdims=True)
    number = constant(np.arange(scores.shape[-1]), scores, best.dtype)
    none = xp.full_like(scores[..., :1], -math.inf)
    top = xp.sum(xp.where(number == best, scores, xp.zeros_like(scores)), axis=-1, keepdims=True)
    top = xp.where(xp.any(near, axis=-1, keepdims=True), top, none)
    return xp.exp(scores - safe(stop_gradient(top), xp)), top
