"""The attention that the delta rule implies: its output is linear in the values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from kerneltrick._arrays import (
    Array,
    Namespace,
    astype,
    constant,
    index_dtype,
    namespace,
    scan,
    untranslated,
)
from kerneltrick.attention._delta_call import DeltaCall, DeltaOptions, check_delta_call
from kerneltrick.attention._linear import check_rows
from kerneltrick.engines import DeltaTokens, prepare_tokens


def delta_weights(
    q: Array,
    k: Array,
    beta: Any = 1.0,
    *,
    rows: Any = None,
    log_decay: Any = None,
    erase: Array | None = None,
    read: Array | None = None,
    scale: float | None = None,
    normalize_qk: bool = False,
    mask: Array | None = None,
    segment_ids: Array | None = None,
) -> Array:
    """The weights that the delta rule implies: o_i = Σ_j A_ij v_j, exactly.

    Takes the keywords of `delta_rule`. Row i is found backwards. From y = scale · q_i it goes over
    j = i, i−1, …: A_ij = β_j k_j·y, then y ← D_j (y − β_j e_j (x_j·y)), in O(n·d) for a row.
    Weights may be negative and do not sum to 1. What a `state` gives is not in them.

    `rows` (a number or a list of query indices) gives only those rows, (..., heads, len(rows), n).
    There are as many heads as beta and log_decay have.

    >>> import numpy as np, kerneltrick as kt
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 50, 8))
    >>> options = {"beta": 0.5, "log_decay": -0.1, "normalize_qk": True}
    >>> a = kt.delta_weights(q, k, rows=[10, 49], **options)
    >>> bool(np.allclose(a @ v, kt.delta_rule(q, k, v, **options)[[10, 49]])), a.shape
    (True, (2, 50))
    """
    options = DeltaOptions(
        log_decay=log_decay,
        erase=erase,
        read=read,
        scale=scale,
        normalize_qk=normalize_qk,
        mask=mask,
        segment_ids=segment_ids,
    )
    return _weights("delta_weights", q, k, beta, options, rows)


@untranslated
def _weights(who: str, q: Array, k: Array, beta: Any, options: DeltaOptions, rows: Any) -> Array:
    xp = namespace(q=q, k=k)
    values = xp.ones_like(_for_heads(k, xp, beta, options)[..., :1])
    call = check_delta_call(who, q, k, values, beta, options)
    chosen = check_rows(rows, q.shape[-2])
    weights = _backwards(call, np.zeros(1, dtype=np.int64) if call.padded else chosen)
    if call.padded:
        weights = weights[..., :0, :0]
    return call.inputs.restore(astype(weights, q.dtype))


def _for_heads(k: Array, xp: Namespace, beta: Any, options: DeltaOptions) -> Array:
    """k with as many heads as the widest of what there is per value head."""
    if getattr(k, "ndim", 0) < 3:
        return k
    heads: int = k.shape[-3]
    given: tuple[Any, ...] = (beta, options.log_decay, options.mask)
    for x in given:
        ndim = getattr(x, "ndim", 0)
        if ndim >= k.ndim - 1:
            heads = max(heads, x.shape[k.ndim - 3])
        elif ndim == 1 and x is options.log_decay:
            heads = max(heads, x.shape[0])
    return xp.concat([k] * max(1, heads // max(k.shape[-3], 1)), axis=-3)


def _backwards(call: DeltaCall, chosen: Any) -> Array:
    """The chosen rows of the weights, (..., H, r, n)."""
    xp, data = call.inputs.xp, call.data
    n, heads = data.v.shape[-2], data.k.shape[-3]
    tokens = prepare_tokens(call.rule, data.streams, heads)
    index = constant(chosen, tokens.q, index_dtype(tokens.q))
    lead = xp.broadcast_arrays(tokens.q[..., :1, :1], tokens.write[..., :1, :1])[0].shape[:-2]

    def of_rows(x: Array) -> Array:
        picked = xp.take(x, index, axis=-2)
        return xp.broadcast_to(picked, (*lead, *picked.shape[-2:]))

    def body(carry: Any, streams: Any, first: Any, valid: Array | None) -> Any:
        k, x, e, beta, decay, restart, bad = streams
        y, done = carry  # `done` says which rows have gone past the first token of their segment
        seen = (index >= n - 1 - first)[:, None] & ~done  # rows that see token j
        weight = beta * (k @ y.mT)
        after = y - (y @ x.mT) @ e
        after = after if decay is None else after * xp.exp(decay)
        if bad is not None:
            weight = xp.where(bad, xp.full_like(weight, math.nan), weight)
        weight = xp.where(seen.mT, weight, xp.zeros_like(weight))
        done = done if restart is None else done | (seen & restart)
        return (xp.where(seen, after, y), done), (weight,)

    erase = tokens.k if tokens.erase is None else tokens.erase
    streams = (tokens.k, erase, tokens.read, tokens.write, tokens.log_decay)
    flipped = tuple(
        None if x is None else xp.flip(x, axis=-2) for x in (*streams, tokens.restart, tokens.bad)
    )
    y = of_rows(tokens.q)
    none = xp.zeros_like(y[..., :1], dtype=xp.bool)
    _, (weights,) = scan(body, (y, none), flipped, length=n, block=1)
    return _finish(xp.flip(weights, axis=-2).mT, tokens, of_rows, xp)


def _finish(weights: Array, tokens: DeltaTokens, of_rows: Any, xp: Namespace) -> Array:
    """NaN in rows whose query is not finite, 0 in masked ones; heads as one axis."""
    if tokens.bad_q is not None:
        weights = xp.where(of_rows(tokens.bad_q), xp.full_like(weights, math.nan), weights)
    if tokens.keep is not None:
        weights = xp.where(of_rows(tokens.keep), weights, xp.zeros_like(weights))
    return xp.reshape(weights, (*weights.shape[:-4], -1, *weights.shape[-2:]))
