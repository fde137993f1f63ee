"""Maps that the compiled core does not know: features first, a stretch of tokens at a time."""

from __future__ import annotations

import dataclasses
import itertools
import math

from kerneltrick import maps
from kerneltrick._arrays import Array, astype, space, wide, zeros
from kerneltrick.engines._native import run
from kerneltrick.engines._problem import (
    Carry,
    Data,
    Result,
    Rule,
    block_positions,
    prepare_keys,
    prepare_queries,
)

STRETCH = 1 << 18  # numbers of features made at once
BLOCKS = 192  # tokens: a multiple of every block length of the core: 32, 48, 64 (native/sizes.h)


def by_stretches(rule: Rule, data: Data, recorded: bool) -> Result:
    """Features of any map, a stretch of tokens at a time; all at once if a gradient may follow."""
    if recorded:
        return _stretch(rule, data, 0, 0, recorded)
    xp = space(data.q)
    m = data.carry.sums.hi.shape[-2]
    room = STRETCH // max(1, math.prod(data.q.shape[:-2]) * m)
    # Stretches end where blocks of the core do, so that bits do not depend on how many fit.
    blocks = BLOCKS if rule.chunk_size == 64 else min(rule.chunk_size, 64)
    step = max(1, room // blocks) * blocks
    n, n_q, start = data.k.shape[-2], data.q.shape[-2], int(data.start)
    edges = [0, *range(step - start % step, n, step), n]
    results, carry = [], data.carry
    if rule.causal:
        for at, end in itertools.pairwise(edges):
            here = slice(at, end)
            results.append(_stretch(rule, _cut(data, here, here, carry), at, at, recorded))
            carry = results[-1].carry
    else:
        one, nothing = slice(0, 1), zeros((*(1,) * (data.q.ndim - 2), 1, 1), data.q, xp.bool)
        for at, end in itertools.pairwise(edges):  # the keys, with one hidden query
            part = _cut(data, one, slice(at, end), carry)._replace(query_mask=nothing)
            carry = _stretch(rule, part, 0, at, recorded).carry
        for at in range(0, n_q, step):  # the queries, with one hidden key
            part = _cut(data, slice(at, at + step), one, carry)._replace(mask=nothing)
            results.append(_stretch(rule, part, at, 0, recorded))
    output = xp.concat([r.output for r in results], axis=-2)
    zero = xp.concat([r.zero for r in results], axis=-2) if rule.normalize else None
    return Result(output, zero, carry)


def _cut(data: Data, queries: slice, keys: slice, carry: Carry) -> Data:
    def take(x: Array | None, where: slice) -> Array | None:
        return None if x is None else x[..., where, :]

    return Data(
        q=take(data.q, queries),
        k=take(data.k, keys),
        v=take(data.v, keys),
        mask=take(data.mask, keys),
        query_mask=take(data.query_mask, queries),
        log_decay=take(data.log_decay, keys),
        restart=take(data.restart, keys),
        q_positions=take(data.q_positions, queries),
        k_positions=take(data.k_positions, keys),
        start=data.start,
        carry=carry,
    )


def _stretch(rule: Rule, data: Data, q_first: int, k_first: int, recorded: bool) -> Result:
    """A stretch whose first query and key are tokens q_first and k_first of the call."""
    xp = space(data.q)
    where_k = block_positions(data.k_positions, data.start, k_first, data.k.shape[-2], data.k)
    where_q = block_positions(data.q_positions, data.start, q_first, data.q.shape[-2], data.q)
    keys = prepare_keys(rule, data.k, data.v, data.mask, None, None, where_k)
    queries = prepare_queries(
        rule, data.q, data.mask if rule.causal else data.query_mask, where_q, data.k.shape[-3]
    )

    def by_head(x: Array | None) -> Array | None:
        return None if x is None else xp.reshape(x, (*data.q.shape[:-1], x.shape[-1]))

    def marked(features: Array, bad: Array | None) -> Array:
        """NaN for tokens that had one: the core sees to what depends on them."""
        return (
            features if bad is None else xp.where(bad, xp.full_like(features, math.nan), features)
        )

    phi_q = marked(by_head(queries.features), by_head(queries.bad))
    phi_k = marked(keys.features, None if keys.bad is None else keys.bad[..., -1:])
    m = data.carry.sums.hi.shape[-2]
    if phi_q.shape[-1] != m or phi_k.shape[-1] != m:
        raise ValueError(
            f"the feature map {rule.feature_map} gave {m} features for one token, but "
            f"{phi_k.shape[-1]} for {phi_k.shape[-2]} keys and {phi_q.shape[-1]} for "
            f"{phi_q.shape[-2]} queries; their number may depend on d alone"
        )
    part = data._replace(
        q=phi_q,
        k=phi_k,
        v=astype(data.v, phi_k.dtype),
        q_positions=None,
        k_positions=None,
        start=data.start + k_first,
    )
    given = dataclasses.replace(
        rule, feature_map=maps.Identity(), scale=1.0, wants_state=True, starts_empty=False
    )
    q_scale, k_scale = (
        None if x is None else wide(x).hi for x in (by_head(queries.log_scale), keys.log_scale)
    )
    result = run(given, part, maps.Fused("identity"), recorded, (q_scale, k_scale))
    return result._replace(output=astype(result.output, data.v.dtype))
