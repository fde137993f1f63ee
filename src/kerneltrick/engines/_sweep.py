"""Near and far a block of tokens at a time: what `chunked` and `recurrent` do beside a window.

A block sees the tokens that are still near as they are and all earlier ones in the sums. Full
attention goes through the tokens backwards for what lies ahead of each query, then forwards for
what lies behind; what is ahead is never the total minus the rest, which would cancel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from kerneltrick._arrays import (
    Array,
    astype,
    constant,
    index_dtype,
    is_looped,
    scan,
    space,
    static_start,
    stop_gradient,
    zeros,
)
from kerneltrick.engines._dense import NearFarRows, View, dense, near_far_rows
from kerneltrick.engines._near import after, resized, units
from kerneltrick.engines._problem import (
    Carry,
    Data,
    Queries,
    Result,
    Rule,
    both,
    either,
    empty_carry,
    finish,
    safe,
    times,
)


class Mixed(NamedTuple):
    """Near and far sums (..., H, g, n, M + 1) apart, each relative to its own reference."""

    near: Array
    top: Array  # (..., H, g, n, 1)
    far: Array
    far_scale: Array | None  # (..., H, 1, n, 1)
    bad: Array  # (..., H, 1, n, M + 1) bool


def sweep(rule: Rule, data: Data, block: int) -> Result:
    """Outputs and state, `block` tokens at a time."""
    return _causal(rule, data, block) if rule.causal else _full(rule, data, block)


def _causal(rule: Rule, data: Data, block: int) -> Result:
    carry, slots = _fixed(rule, data)

    def body(carry: Carry, blocks: Any, first: Any, valid: Array | None) -> Any:
        q, k, v, mask, restart, q_positions, k_positions = blocks
        part = Data(
            q=q,
            k=k,
            v=v,
            mask=both(mask, valid),
            query_mask=None,
            log_decay=None,
            restart=restart,
            q_positions=q_positions,
            k_positions=k_positions,
            start=data.start + first,
            carry=carry,
            gain=data.gain,
        )
        output, zero, carry = dense(rule, part)
        return _fitted(rule, carry, slots), (output, zero)

    streams = (
        data.q,
        data.k,
        data.v,
        data.mask,
        data.restart,
        data.q_positions,
        data.k_positions,
    )
    length = data.k.shape[-2]
    offset = static_start(data.start, data.k, length) % block
    carry, (output, zero) = scan(body, carry, streams, length=length, block=block, offset=offset)
    return Result(output, zero, _cut(rule, carry, data))


def _full(rule: Rule, data: Data, block: int) -> Result:
    xp, gain = space(data.q), data.gain
    assert gain is not None
    n_q = data.q.shape[-2]
    data = _one_length(data)
    carry, slots = _fixed(rule, data)
    length = data.k.shape[-2]

    def flipped(x: Array | None) -> Array | None:
        return None if x is None else xp.flip(x, axis=-2)

    def see(
        carry: Carry, blocks: Any, valid: Array | None, view: View
    ) -> tuple[Mixed, Queries, Data]:
        q, k, v, mask, query_mask, q_positions, k_positions = blocks
        part = Data(
            q=q,
            k=k,
            v=v,
            mask=both(mask, valid),
            query_mask=both(query_mask, valid),
            log_decay=None,
            restart=None,
            q_positions=q_positions,
            k_positions=k_positions,
            start=0,
            carry=carry,
            gain=gain,
        )
        parts = near_far_rows(rule, part, np.arange(block), view)
        return _mixed(parts), parts.queries, part

    def backwards(carry: Carry, blocks: Any, first: Any, valid: Array | None) -> Any:
        mixed, _, part = see(carry, blocks, valid, "ahead")
        return _fitted(rule, after(rule, part, ahead=True), slots_ahead), mixed

    def forwards(carry: Carry, blocks: Any, first: Any, valid: Array | None) -> Any:
        mixed, queries, part = see(carry, blocks[:7], valid, "past")
        mixed = _joined(mixed, Mixed._make(blocks[7:]))
        unit = units(rule, gain, mixed.top, mixed.far_scale, queries.log_scale, mixed.far)
        total = times(mixed.near, unit.near, xp) + times(mixed.far, unit.far, xp)
        queries = queries._replace(log_scale=None)
        made = finish(rule, total, unit.reference, queries, mixed.bad, part.v.dtype)
        return _fitted(rule, after(rule, part), slots), made

    streams = (
        data.q,
        data.k,
        data.v,
        data.mask,
        data.query_mask,
        data.q_positions,
        data.k_positions,
    )
    empty = empty_carry(rule, data.k, data.v)
    assert empty.near is not None
    assert carry.near is not None
    kept = length
    if data.mask is not None:
        kept = xp.sum(astype(data.mask, index_dtype(data.k)), axis=-2, keepdims=True)
    count = carry.near.count + kept
    held = empty.near._replace(
        positions=astype(empty.near.positions, carry.near.positions.dtype), count=count
    )
    empty = empty._replace(near=held)
    slots_ahead = None if slots is None else min(rule.window, length)
    _, behind = scan(
        backwards,
        _fitted(rule, empty, slots_ahead),
        tuple(flipped(x) for x in streams),
        length=length,
        block=block,
    )
    ahead = tuple(flipped(x) for x in behind)
    carry, (output, zero) = scan(forwards, carry, (*streams, *ahead), length=length, block=block)
    output, zero = (None if x is None else x[..., :n_q, :] for x in (output, zero))
    return Result(output, zero, _cut(rule, carry, data))


def _mixed(parts: NearFarRows) -> Mixed:
    xp = space(parts.far)
    values = xp.expand_dims(parts.keys.values, axis=-3)
    assert parts.near is not None
    assert parts.top is not None
    bad = parts.bad
    if bad is None:
        shape = (*values.shape[:-2], parts.far.shape[-2], values.shape[-1])
        bad = zeros(shape, values, xp.bool)
    far = parts.far @ values + parts.state
    return Mixed(parts.near @ values, parts.top, far, parts.far_scale, bad)


def _joined(a: Mixed, b: Mixed) -> Mixed:
    """The sums of two sets of keys, relative to the larger reference of the two."""
    xp = space(a.near)

    def add(x: Array, x_log: Array, y: Array, y_log: Array) -> tuple[Array, Array]:
        largest = xp.where(x_log >= y_log, x_log, y_log)
        low = safe(stop_gradient(largest), xp)
        left, right = (astype(xp.exp(stop_gradient(log) - low), x.dtype) for log in (x_log, y_log))
        return times(x, left, xp) + times(y, right, xp), largest

    near, top = add(a.near, a.top, b.near, b.top)
    if a.far_scale is None or b.far_scale is None:
        far, far_scale = a.far + b.far, None
    else:
        far, far_scale = add(a.far, a.far_scale, b.far, b.far_scale)
    bad = either(a.bad, b.bad)
    assert bad is not None
    return Mixed(near, top, far, far_scale, bad)


def _one_length(data: Data) -> Data:
    """As many queries as keys, by masked ones at the end, with their positions written out."""
    xp = space(data.q)
    n, n_q = data.k.shape[-2], data.q.shape[-2]
    length = max(n, n_q)

    def grown(x: Array | None, size: int) -> Array | None:
        if x is None or size == length:
            return x
        return xp.concat(
            [x, zeros((*x.shape[:-2], length - size, x.shape[-1]), x, x.dtype)], axis=-2
        )

    def mask(x: Array | None, size: int) -> Array | None:
        if x is None and size < length:
            shape = (*(1,) * (data.q.ndim - 2), length, 1)
            return constant((np.arange(length) < size).reshape(shape), data.q, xp.bool)
        return grown(x, size)

    shape = (*(1,) * (data.q.ndim - 2), length, 1)
    counted = constant(np.arange(length).reshape(shape), data.q, index_dtype(data.q)) + data.start
    return data._replace(
        q=grown(data.q, n_q),
        k=grown(data.k, n),
        v=grown(data.v, n),
        mask=mask(data.mask, n),
        query_mask=mask(data.query_mask, n_q),
        q_positions=counted if data.q_positions is None else grown(data.q_positions, n_q),
        k_positions=counted if data.k_positions is None else grown(data.k_positions, n),
    )


def _fixed(rule: Rule, data: Data) -> tuple[Carry, int | None]:
    """The carry; in a loop of the library's own it has room for all that will be near."""
    slots = _slots(rule, data) if is_looped(data.k, data.k.shape[-2]) else None
    return _fitted(rule, data.carry, slots), slots


def _fitted(rule: Rule, carry: Carry, slots: int | None) -> Carry:
    if slots is None:
        return carry
    assert carry.near is not None
    return carry._replace(near=resized(rule, carry.near, slots))


def _slots(rule: Rule, data: Data) -> int:
    """How many tokens of the window the state after a call holds at most."""
    assert data.carry.near is not None
    held = data.carry.near.k.shape[-2] - rule.sinks
    room = max(rule.window - 1, 0)
    # A full window stays full, however many tokens come: a loop must know that.
    return room if held >= room else min(room, held + data.k.shape[-2])


def _cut(rule: Rule, carry: Carry, data: Data) -> Carry:
    """The carry without the slots that stand for the padding of blocks."""
    return _fitted(rule, carry, _slots(rule, data))
