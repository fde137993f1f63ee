"""Attention with its n×n weights formed: slow, obviously right, the oracle of the others."""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np

from kerneltrick._arrays import (
    Array,
    astype,
    compute_dtype,
    constant,
    index_dtype,
    space,
    stop_gradient,
    wide,
    wide_add,
    wide_narrow,
)
from kerneltrick.engines._near import after, extended, is_near, near_weights, ranks, units
from kerneltrick.engines._problem import (
    Carry,
    Data,
    Keys,
    Queries,
    Result,
    Rule,
    add_decay,
    block_positions,
    either,
    finish,
    prepare_keys,
    prepare_queries,
    safe,
    times,
)


class DenseRows(NamedTuple):
    """Chosen rows of the weights before normalising, and what they are to be summed with."""

    # relative to exp(reference), 0 where not allowed
    weights: Annotated[Array, "(..., H, g, r, n)"]
    allowed: Annotated[Array, "bool (..., H, 1, r, n)"]  # the keys that a row may see
    reference: Annotated[Array | None, "(..., H, 1 or g, r, 1)"]
    # what the initial state adds, relative likewise
    state: Annotated[Array, "(..., H, g, r, M + 1)"]
    values: Annotated[Array, "(..., H, 1, n, M + 1)"]
    bad: Annotated[Array | None, "(..., H, 1, r, M + 1)"]  # sums that are NaN
    queries: Queries
    keys: Keys


class NearFarRows(NamedTuple):
    """Rows of near and far weights apart, over the n′ tokens that the state still holds and n."""

    far: Annotated[Array, "(..., H, g, r, n′ + n)"]  # relative to exp(far_scale), 0 where not far
    far_scale: Annotated[Array | None, "(..., H, 1, r, 1)"]
    # what the sums of the initial state add, relative likewise
    state: Annotated[Array, "(..., H, g, r, M + 1)"]
    # relative to exp(top); None if all are far
    near: Annotated[Array | None, "(..., H, g, r, n′ + n)"]
    # the largest near score, −inf where nothing is near
    top: Annotated[Array | None, "(..., H, g, r, 1)"]
    allowed: Annotated[Array, "bool (..., H, 1, r, n′ + n)"]
    bad: Annotated[Array | None, "(..., H, 1, r, M + 1)"]
    queries: Queries
    keys: Keys  # n′ + n of them


class _Sight(NamedTuple):
    """What row i sees of key j, in logarithms; e = 1, or m where the decay is per feature."""

    allowed: Annotated[Array, "bool (..., H, r, n)"]
    near: Annotated[Array | None, "bool (..., H, r, n)"]  # its weight is exact
    far: Annotated[Array, "bool (..., H, r, n)"]  # its weight is the map's
    exponent: Annotated[Array, "(..., H, r, n, e)"]  # −inf where not far
    sees_state: Annotated[Array, "bool (..., H, r, 1)"]
    # the exponent of the initial state, −inf where not seen
    entry: Annotated[Array, "(..., H, r, e)"]
    reference: Annotated[Array | None, "(..., H, r, 1)"]  # the largest exponent


def dense(rule: Rule, data: Data) -> Result:
    """Weights (n × n) first, then weights times values."""
    rows = dense_rows(rule, data, np.arange(data.q.shape[-2]))
    mixed = rows.weights @ rows.values + rows.state
    output, zero = finish(rule, mixed, rows.reference, rows.queries, rows.bad, data.v.dtype)
    carry = _after(rule, data, rows.keys) if rule.all_far else after(rule, data)
    return Result(output, zero, carry)


def dense_rows(rule: Rule, data: Data, rows: np.ndarray[Any, Any]) -> DenseRows:
    """The rows of the weights for the queries at `rows`, without forming the others."""
    xp = space(data.q)
    parts = near_far_rows(rule, data, rows, "past" if rule.causal else "all")
    weights, reference, state = parts.far, parts.far_scale, parts.state
    queries, keys, values = parts.queries, parts.keys, xp.expand_dims(parts.keys.values, axis=-3)
    carried = keys.features.shape[-2] - data.k.shape[-2]
    if parts.near is not None:
        assert parts.top is not None
        far_sum = weights @ values + state
        unit = units(rule, data.gain, parts.top, reference, queries.log_scale, far_sum)
        weights = parts.near * unit.near + weights * unit.far
        near_state = weights[..., :carried] @ values[..., :carried, :]
        state = times(state, unit.far, xp) + near_state
        reference, queries = unit.reference, queries._replace(log_scale=None)
    keys = Keys(*(None if x is None else x[..., carried:, :] for x in keys))
    return DenseRows(
        weights=weights[..., carried:],
        allowed=parts.allowed[..., carried:],
        reference=reference,
        state=state,
        values=values[..., carried:, :],
        bad=parts.bad,
        queries=queries,
        keys=keys,
    )


View = Literal["past", "all", "ahead"]  # keys j ≤ i; all; j < i of a sequence that runs backwards


def near_far_rows(rule: Rule, data: Data, rows: np.ndarray[Any, Any], view: View) -> NearFarRows:
    """Near and far weights of the queries at `rows`, each in units of its own."""
    xp = space(data.q)
    n_q = data.q.shape[-2]
    pick = constant(rows, data.q, index_dtype(data.q))
    where_q = block_positions(data.q_positions, data.start, 0, n_q, data.q)
    keep = data.mask if rule.causal else data.query_mask
    queries = prepare_queries(
        rule,
        xp.take(data.q, pick, axis=-2),
        None if keep is None else xp.take(keep, pick, axis=-2),
        xp.take(where_q, pick, axis=-1),
        data.k.shape[-3],
    )
    carried, seen = extended(data)
    where_k = block_positions(seen.k_positions, seen.start, 0, seen.k.shape[-2], seen.k)
    keys = prepare_keys(rule, seen.k, seen.v, seen.mask, seen.log_decay, None, where_k)
    close = None
    if not rule.all_far:
        query_rank, key_rank = ranks(rule, data, view == "ahead")
        # Another number of queries than keys: no window, or one that is longer than everything.
        aligned = n_q == data.k.shape[-2]
        query_rank = xp.take(query_rank, pick, axis=-2) if aligned else None
        close = is_near(rule, query_rank, key_rank)
    sight = _look(seen, keys, rows, view, carried, close)
    low = xp.zeros_like(sight.entry[..., :1])
    if sight.reference is not None:
        low = safe(sight.reference, xp)

    phi_q, phi_k = queries.features, xp.expand_dims(keys.features, axis=-3)
    factor = xp.exp(astype(sight.exponent - low[..., None], phi_q.dtype))
    factor = xp.expand_dims(factor, axis=-4)
    if factor.shape[-1] == 1:
        weights = phi_q @ phi_k.mT * factor[..., 0]
    else:
        weights = xp.sum(phi_q[..., :, None, :] * phi_k[..., None, :, :] * factor, axis=-1)
    allowed = xp.expand_dims(sight.allowed, axis=-3)
    weights = xp.where(xp.expand_dims(sight.far, axis=-3), weights, xp.zeros_like(weights))
    near = top = None
    if sight.near is not None:
        scores = queries.exact @ xp.expand_dims(keys.exact, axis=-3).mT
        near, top = near_weights(scores, xp.expand_dims(sight.near, axis=-3))

    sees_state = xp.expand_dims(sight.sees_state, axis=-3)
    sums = xp.expand_dims(wide_narrow(data.carry.sums, phi_q.dtype), axis=-3)
    entry = xp.exp(astype(sight.entry - low, phi_q.dtype))
    state = (phi_q * xp.expand_dims(entry, axis=-3)) @ sums
    counts = sees_state & (xp.expand_dims(xp.max(entry, axis=-1, keepdims=True), axis=-3) > 0)
    state = xp.where(counts, state, xp.zeros_like(state))

    bad = None
    if keys.bad is not None:
        count = xp.astype(allowed, phi_q.dtype) @ xp.expand_dims(
            xp.astype(keys.bad, phi_q.dtype), axis=-3
        )
        bad = count > 0
    if data.carry.bad is not None:
        bad = either(bad, xp.expand_dims(data.carry.bad, axis=-3) & sees_state)
    reference = None if sight.reference is None else xp.expand_dims(sight.reference, axis=-3)
    return NearFarRows(
        far=weights,
        far_scale=reference,
        state=state,
        near=near,
        top=top,
        allowed=allowed,
        bad=bad,
        queries=queries,
        keys=keys,
    )


def _look(
    data: Data,
    keys: Keys,
    rows: np.ndarray[Any, Any],
    view: View,
    carried: int = 0,
    close: Array | None = None,
) -> _Sight:
    """`carried` keys stand in front of the call's own; `close` says which are near, if seen."""
    xp = space(data.k)
    n, dtype = data.k.shape[-2], compute_dtype(data.k)
    pick = constant(rows, data.k, index_dtype(data.k))
    behind = np.arange(-carried, n - carried)[None, :] - rows[:, None]
    triangle = {"past": behind <= 0, "all": behind == behind, "ahead": behind < 0}[view]
    shape = (*data.k.shape[:-2], len(rows), n)
    allowed = xp.broadcast_to(constant(triangle, data.k, xp.bool), shape)
    sees_state = xp.ones_like(allowed[..., :1])
    if data.mask is not None:
        allowed = allowed & data.mask.mT
    if data.restart is not None:
        segment = xp.cumulative_sum(xp.astype(data.restart, index_dtype(data.k)), axis=-2)
        own = xp.take(segment, pick + carried, axis=-2)
        allowed = allowed & (own == segment.mT)
        sees_state = sees_state & (own == 0)
    far, near = allowed, None
    if close is not None:
        near = allowed & close
        far = allowed & ~close
        if keys.features.shape[-1] == 0:  # without features what is far does not matter at all
            far, allowed = xp.zeros_like(far), near

    exponent = xp.zeros_like(xp.astype(allowed, dtype))[..., None]
    entry = exponent[..., 0, :]
    if keys.log_decay is not None:
        # Σ over l in (j, i], added up backwards from i: what is near, and matters, is exact.
        past = constant(triangle[:, :, None], data.k, xp.bool)
        steps = xp.where(past, keys.log_decay[..., None, :, :], xp.zeros_like(exponent))
        with np.errstate(over="ignore"):  # −inf decays as much
            back = xp.flip(xp.cumulative_sum(xp.flip(steps, axis=-2), axis=-2), axis=-2)
        exponent = exponent + xp.concat(
            [back[..., 1:, :], xp.zeros_like(back[..., :1, :])], axis=-2
        )
        entry = entry + back[..., 0, :]
    if keys.log_scale is not None:
        assert data.carry.log_scale is not None
        exponent = exponent + keys.log_scale.mT[..., None]
        entry = entry + data.carry.log_scale
    exponent = xp.where(far[..., None], exponent, xp.full_like(exponent, -math.inf))
    entry = xp.where(sees_state, entry, xp.full_like(entry, -math.inf))
    reference = None
    if keys.log_scale is not None:
        largest = xp.max(xp.max(exponent, axis=-1), axis=-1)[..., None]
        reference = stop_gradient(xp.maximum(largest, xp.max(entry, axis=-1, keepdims=True)))
    return _Sight(allowed, near, far, exponent, sees_state, entry, reference)


def _after(rule: Rule, data: Data, keys: Keys) -> Carry:
    """The state after the last token: what a row there sees, summed over the keys."""
    xp = space(data.k)
    carry, last = data.carry, np.array([data.k.shape[-2] - 1])
    sight = _look(data, keys, last, "past")
    low = xp.zeros_like(sight.entry[..., :1])
    if sight.reference is not None:
        low = safe(sight.reference, xp)
    leave = xp.exp(astype(sight.exponent[..., 0, :, :] - low, keys.features.dtype))
    leaving = times(keys.features, leave, xp)
    through = xp.exp(sight.entry - low).mT
    sums = wide_add(carry.sums, leaving.mT @ keys.values, through)
    log_decay = carry.log_decay
    if log_decay is not None:
        since = xp.zeros_like(log_decay.hi)
        if keys.log_decay is not None:
            with np.errstate(over="ignore"):
                since = since + xp.sum(wide(keys.log_decay).hi, axis=-2, keepdims=True)
        since = xp.where(sight.sees_state, since, xp.full_like(since, -math.inf))
        log_decay = add_decay(log_decay, since)
    bad = None
    if keys.bad is not None:
        bad = xp.any(keys.bad & sight.allowed.mT, axis=-2, keepdims=True)
    if carry.bad is not None:
        bad = either(bad, carry.bad & sight.sees_state)
    return Carry(sums, sight.reference, log_decay, bad)
