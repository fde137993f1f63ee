"""Linear attention and the delta rule of a sequence whose tokens are split over devices.

Each device sums its own tokens into a state, all devices exchange these, and each joins the states
of the devices before it. Its tokens then continue from there like those of any other sequence. The
exchange is one `lax.all_gather` of states, whatever the length; gradients go back the same way.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from typing import Annotated, Any

import jax
import jax.numpy as jnp

from kerneltrick import attention, maps
from kerneltrick._arrays import Array, compute_dtype
from kerneltrick.attention import DeltaState, State
from kerneltrick.engines import merge


def linear_attention(
    q: Annotated[Array, "(..., H_q, n, d)"],
    k: Annotated[Array, "(..., H, n, d)"],
    v: Annotated[Array, "(..., H, n, M)"],
    feature_map: maps.MapLike = "elu",
    *,
    axis_name: Any,
    causal: bool = True,
    positions: Array | None = None,
    segment_ids: Array | None = None,
    state: State | None = None,
    return_state: bool = False,
    **keywords: Any,
) -> Any:
    """`kerneltrick.linear_attention` of one sequence whose tokens are split over devices, in order.

    Called within `jax.shard_map`, with this device's tokens: the same number on each. Other
    arguments are those of `kerneltrick.linear_attention` but for `window`, `sinks` and `far`.

    axis_name
        The axis of the mesh, or a tuple of axes, over which tokens are split.
    state
        The state before the whole sequence, the same on every device.
    return_state
        Also return the state after the tokens of this device and all before it; in full attention,
        that of the whole sequence.

    >>> import jax, numpy as np, kerneltrick as kt
    >>> from kerneltrick.jax import linear_attention
    >>> x = jax.numpy.asarray(np.random.default_rng(0).standard_normal((1, 2, 8, 4)))
    >>> parts = x.reshape(1, 2, 2, 4, 4)  # two parts of four tokens
    >>> split = jax.vmap(lambda x: linear_attention(x, x, x, axis_name="cp"), 2, 2, axis_name="cp")
    >>> whole = kt.linear_attention(x, x, x, causal=True)
    >>> bool(jax.numpy.allclose(split(parts).reshape(x.shape), whole, atol=1e-5))
    True
    """
    refused = sorted({"window", "sinks", "far"} & {*keywords})
    if refused:
        raise ValueError(
            f"kerneltrick.jax.linear_attention has no {', '.join(refused)}: every weight is the "
            "map's. Leave them out, call kerneltrick.linear_attention on one device, or use "
            "kerneltrick.torch.distributed, which has windows"
        )
    n, here = k.shape[-2], jax.lax.axis_index(axis_name)
    start = 0 if state is None else state.stop
    if positions is None:
        positions = start + here * n + jnp.arange(n)
    call = functools.partial(attention.linear_attention, feature_map=feature_map)
    sums = {name: keywords[name] for name in ("scale", "mask", "chunk_size") if name in keywords}
    if causal:
        order = {"causal": True, "segment_ids": segment_ids, "positions": positions}
        decay = {"log_decay": keywords.get("log_decay")}
        own = call(q, k, v, on_zero="zero", return_state=True, **order, **sums, **decay)[1]
    else:
        places = (positions[..., :1], positions)
        own = call(
            q[..., :1, :], k, v, positions=places, on_zero="zero", return_state=True, **sums
        )[1]
    befores = _prefixes(own, state, _restarts(segment_ids, k, axis_name), axis_name)
    if causal:
        carry = jax.tree.map(lambda *x: jnp.stack(x)[here], *befores[:-1])
        before = dataclasses.replace(own, carry=carry, start=0, stop=start + here * n)
        made = call(q, k, v, state=before, return_state=True, **order, **keywords)
        return made if return_state else made[0]
    stop = start + n * (len(befores) - 1)
    total = dataclasses.replace(own, carry=befores[-1], start=0, stop=stop)
    rest = {name: x for name, x in keywords.items() if name != "mask"}
    none = slice(0, 0)
    places = (positions, positions[..., none])
    output = call(q, k[..., none, :], v[..., none, :], state=total, positions=places, **rest)
    return (output, total) if return_state else output


def _prefixes(own: State, state: State | None, restarts: Any, axis_name: Any) -> list[Any]:
    """The carry before the tokens of each device, and behind the last the one after all."""
    empty = own.carry._replace(
        sums=jax.tree.map(jnp.zeros_like, own.carry.sums),
        log_decay=jax.tree.map(jnp.zeros_like, own.carry.log_decay),
    )
    if empty.log_scale is not None:
        empty = empty._replace(log_scale=jnp.full_like(empty.log_scale, -math.inf))
    carry = empty
    if state is not None:
        carry = state.carry
        if carry.log_decay is None:
            carry = carry._replace(log_decay=empty.log_decay)
    parts = jax.tree.map(lambda x: jax.lax.all_gather(x, axis_name), own.carry)
    found = []
    for rank in range(jax.lax.psum(1, axis_name)):
        if restarts is not None:
            carry = jax.tree.map(functools.partial(jnp.where, restarts[rank]), empty, carry)
        found.append(carry)
        carry = merge(carry, jax.tree.map(operator.itemgetter(rank), parts))
    return [*found, carry]


def _restarts(ids: Array | None, k: Array, axis_name: Any) -> Any:
    """Whether a segment begins with the first token of each device, shaped for its state."""
    if ids is None:
        return None
    first, last = (jax.lax.all_gather(x, axis_name) for x in (ids[..., 0], ids[..., -1]))
    changes = jnp.concatenate([jnp.zeros_like(first[:1], jnp.bool_), first[1:] != last[:-1]])
    heads = 2 if ids.ndim == k.ndim - 1 else 3
    return changes.reshape(*changes.shape, *(1,) * (heads if ids.ndim > 1 else 0))


def delta_rule(
    q: Annotated[Array, "(..., H_k, n, d)"],
    k: Annotated[Array, "(..., H_k, n, d)"],
    v: Annotated[Array, "(..., H, n, M)"],
    beta: Any = 1.0,
    *,
    axis_name: Any,
    segment_ids: Array | None = None,
    state: DeltaState | None = None,
    return_state: bool = False,
    **keywords: Any,
) -> Any:
    """`kerneltrick.delta_rule` of one sequence whose tokens are split over devices, in order.

    Called within `jax.shard_map`, with this device's tokens: the same number on each. Other
    arguments are those of `kerneltrick.delta_rule`. The tokens of a device turn a state S into
    A·S + B. The columns of a state do not mix, so one call gives both: B from zeros, and A from the
    identity with values of 0.

    axis_name
        The axis of the mesh, or a tuple of axes, over which tokens are split.
    state
        The state before the whole sequence, the same on every device.
    return_state
        Also return the state after the tokens of this device and all before it.

    >>> import jax, numpy as np, kerneltrick as kt
    >>> from kerneltrick.jax import delta_rule
    >>> x = jax.numpy.asarray(np.random.default_rng(0).standard_normal((1, 2, 8, 4)) / 2)
    >>> parts = x.reshape(1, 2, 2, 4, 4)  # two parts of four tokens
    >>> split = jax.vmap(lambda x: delta_rule(x, x, x, axis_name="cp"), 2, 2, axis_name="cp")
    >>> bool(jax.numpy.allclose(split(parts).reshape(x.shape), kt.delta_rule(x, x, x), atol=1e-5))
    True
    """
    n, d, here = k.shape[-2], k.shape[-1], jax.lax.axis_index(axis_name)
    dtype, rows = compute_dtype(v), v.shape[:-2]
    nothing = jnp.zeros((*rows, n, d), v.dtype)
    zero = jnp.zeros((*rows, d, v.shape[-1]), dtype)
    same = jnp.broadcast_to(jnp.eye(d, dtype=dtype), (*rows, d, d))
    call = functools.partial(attention.delta_rule, segment_ids=segment_ids, return_state=True)
    begin = DeltaState(jnp.concatenate([zero, same], axis=-1))
    wide = jnp.concatenate([v, nothing], axis=-1)
    made = call(q, k, wide, beta, state=begin, **keywords)[1].S
    parts = jax.lax.all_gather(made, axis_name)
    S = zero if state is None else state.S
    restarts, befores = _restarts(segment_ids, v, axis_name), []
    for rank in range(jax.lax.psum(1, axis_name)):
        if restarts is not None:
            S = jnp.where(restarts[rank], zero, S)
        befores.append(S)
        added, through = jnp.split(parts[rank], [v.shape[-1]], axis=-1)
        S = jnp.matmul(through, S, precision="highest") + added
    start = (0 if state is None else state.stop) + here * n
    before = DeltaState(jnp.stack(befores)[here], 0, start)
    output, after = call(q, k, v, beta, state=before, **keywords)
    return (output, after) if return_state else output
