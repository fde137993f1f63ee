"""Linear attention token by token: the recurrence as it is written, and what a decoder runs."""

from __future__ import annotations

import math
from typing import Any

from kerneltrick._arrays import Array, astype, scan, space, stop_gradient, wide_add, wide_narrow
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
    vanishes,
)
from kerneltrick.engines._sweep import sweep


def recurrent(rule: Rule, data: Data) -> Result:
    """U ← a ⊙ U + φ(k)vᵀ, Z ← a ⊙ Z + φ(k), o = φ(q)ᵀU / φ(q)ᵀZ, one token at a time."""
    if not rule.all_far:
        return sweep(rule, data, 1)
    heads = data.k.shape[-3]

    def write(carry: Carry, blocks: Any, first: Any, valid: Array | None) -> Carry:
        k, v, mask, log_decay, restart, positions = blocks
        where = block_positions(positions, data.start, first, 1, k)
        keys = prepare_keys(rule, k, v, both(mask, valid), log_decay, restart, where)
        return step(carry, keys)

    def read(carry: Carry, blocks: Any, first: Any, valid: Array | None) -> Any:
        q, mask, positions = blocks
        where = block_positions(positions, data.start, first, 1, q)
        queries = prepare_queries(rule, q, both(mask, valid), where, heads)
        return finish(rule, *look_up(carry, queries), dtype=data.v.dtype)

    keys_in = (data.k, data.v, data.mask, data.log_decay, data.restart, data.k_positions)
    if not rule.causal:
        queries_in = (data.q, data.query_mask, data.q_positions)
        n, n_q = data.k.shape[-2], data.q.shape[-2]
        carry, _ = scan(lambda *a: (write(*a), ()), data.carry, keys_in, length=n, block=1)
        carry, (output, zero) = scan(
            lambda carry, *a: (carry, read(carry, *a)), carry, queries_in, length=n_q, block=1
        )
        return Result(output, zero, carry)

    def both_sides(carry: Carry, blocks: Any, first: Any, valid: Array | None) -> Any:
        carry = write(carry, blocks[:6], first, valid)
        return carry, read(carry, (blocks[6], blocks[2], blocks[7]), first, valid)

    streams = (*keys_in, data.q, data.q_positions)
    carry, (output, zero) = scan(both_sides, data.carry, streams, length=data.k.shape[-2], block=1)
    return Result(output, zero, carry)


def step(carry: Carry, keys: Keys) -> Carry:
    """The state after one more token."""
    xp = space(keys.features)
    features, values = (astype(x, carry.sums.hi.dtype) for x in (keys.features, keys.values))
    factor, log_scale = None, carry.log_scale
    decay, bad = keys.log_decay, carry.bad
    if keys.log_scale is not None:
        assert carry.log_scale is not None
        slowest = carry.log_scale
        if decay is not None:
            slowest = slowest + xp.max(decay, axis=-1, keepdims=True)
        log_scale = stop_gradient(xp.maximum(slowest, keys.log_scale))
        low = safe(log_scale, xp)
        features = features * astype(xp.exp(keys.log_scale - low), features.dtype)
        shift = carry.log_scale - low
        factor = xp.exp(shift if decay is None else decay + shift)
    elif decay is not None:
        factor = xp.exp(decay)
    sums = wide_add(carry.sums, features.mT @ values, None if factor is None else factor.mT)
    if bad is not None and decay is not None:
        bad = bad & (xp.max(decay, axis=-1, keepdims=True) > -math.inf)
    return Carry(sums, log_scale, add_decay(carry.log_decay, decay), either(bad, keys.bad))


def look_up(carry: Carry, queries: Queries) -> tuple[Array, Array | None, Queries, Array | None]:
    """φ(q)ᵀ(U, Z) for queries that see the whole state; the arguments of `finish`."""
    xp = space(queries.features)
    sums = wide_narrow(carry.sums, carry.sums.hi.dtype)
    mixed = astype(queries.features, sums.dtype) @ xp.expand_dims(sums, axis=-3)
    # What the arithmetic of the features cannot hold counts as 0, as in the other engines: only
    # wider sums have it, and beside it may be missing what was larger and the features have lost.
    lost = vanishes(mixed[..., -1:], queries.features.dtype)
    mixed = xp.where(lost, xp.zeros_like(mixed), mixed)
    reference = None if carry.log_scale is None else xp.expand_dims(carry.log_scale, axis=-3)
    bad = None if carry.bad is None else xp.expand_dims(carry.bad, axis=-3)
    return mixed, reference, queries, bad
