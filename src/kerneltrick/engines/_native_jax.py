"""The compiled core for JAX's arrays on the CPU: linear attention as an operator of JAX's."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kerneltrick._arrays import Array, Wide, compute_dtype, constant, index_dtype, wide_add
from kerneltrick.engines import _native
from kerneltrick.engines._chunked import chunked
from kerneltrick.engines._core_call import CoreCall
from kerneltrick.engines._jax_operator import OPERATORS, Arrays, JaxOperator, forward
from kerneltrick.engines._native import Arguments
from kerneltrick.engines._native_gradient import give_gradients
from kerneltrick.engines._near import after
from kerneltrick.engines._problem import (
    Carry,
    Data,
    Near,
    Result,
    Rule,
    empty_carry,
    rule_of,
)
from kerneltrick.engines._xla_call import REST, CallForm
from kerneltrick.maps import Fused

ARRAYS = Arguments._fields[: Arguments._fields.index("rule")]
NEAR = ("near_k", "near_v", "near_positions", "near_keep", "near_count")
WEIGHTS = ("weight", "bias", "key_weight")


def jax_attention(rule: Rule, data: Data, how: Fused, scales: _native.Scales) -> Result:
    """A call on JAX's arrays."""
    dtype, carry = compute_dtype(data.q), data.carry
    weights = (None if x is None else constant(x, data.q, dtype) for x in how[1:])
    start = data.start
    given = _native.arguments(
        rule, data._replace(start=0), Fused(how.text, *weights), scales, rule.stateless
    )
    arrays = {name: x for name, x in zip(ARRAYS, given, strict=False) if x is not None}
    if "sums" in arrays and carry.sums.lo is not None:
        arrays["sums" + REST] = carry.sums.lo
    if "log_decay" in arrays:
        arrays["log_decay"] = arrays["log_decay"].astype(dtype)
    if not rule.stateless:
        arrays["start"] = jnp.asarray(start, index_dtype(data.q))
    made = forward(CallForm("attention", False, (), rule.text, False), arrays)
    zero = made.get("zero")
    if rule.stateless:
        return Result(made["output"], zero, carry)
    near = None
    if "near_after" in made:
        near = _native.near_tokens_at(data, made["near_after"], made["seen_after"])
    sums = Wide(made["sums"], made.get("sums" + REST))
    total = _decay_after(data) if rule.wants_state else carry.log_decay
    last = Carry(sums, made.get("log_scale"), total, made["bad"], near)
    return Result(made["output"].astype(data.v.dtype), zero, last)


def _decay_after(data: Data) -> Wide | None:
    """Outside the operator, so that the state's own log-decay has its gradient too."""
    total, steps = data.carry.log_decay, data.log_decay
    if total is None or (steps is None and data.restart is None):
        return total
    if steps is None:
        steps = jnp.zeros((*data.k.shape[:-1], 1), total.hi.dtype)
    steps = steps.astype(total.hi.dtype)
    if data.mask is not None:
        steps = jnp.where(data.mask, steps, jnp.zeros_like(steps))
    if data.restart is not None:
        steps = jnp.where(data.restart, jnp.full_like(steps, -math.inf), steps)
    block = 64  # in float32 a sum of more would lose the small ones
    short = -steps.shape[-2] % block
    steps = jnp.pad(steps, [(0, 0)] * (steps.ndim - 2) + [(0, short), (0, 0)])
    blocks = steps.reshape(*steps.shape[:-2], -1, block, steps.shape[-1]).sum(-2, keepdims=True)
    found: Wide = jax.lax.scan(
        lambda w, x: (wide_add(w, x), None), total, jnp.moveaxis(blocks, -3, 0)
    )[0]
    return found


def _describe(form: CallForm, arrays: Any, dtype: str) -> tuple[CoreCall, dict[str, Any]]:
    fields, weight = {name: arrays.get(name) for name in ARRAYS}, arrays.get("weight")
    heads, own = form.heads
    if weight is not None:
        fields["weight"] = weight[:heads] if heads else None
        fields["key_weight"] = weight[heads:] if own else None
    given = Arguments(**fields, rule=form.rule, start=0, gradient=form.gradient)
    call = _native.assemble(given, _native.type_number(dtype))
    call.array("weight", weight)
    if form.backward:
        after = (arrays["d_output"], arrays.get("d_sums"))
        made = give_gradients(given, call, *after, arrays["output"], arrays["saved"])
        return call, made._asdict()
    return call, _native.give_results(given, call)._asdict()


def _stack(form: CallForm, arrays: Arrays) -> tuple[Arrays, tuple[int, int]]:
    """The weights of a map as the core takes them."""
    weight, bias, own = (arrays.get(name) for name in WEIGHTS)
    rest = {name: x for name, x in arrays.items() if name not in WEIGHTS}
    q = arrays["q"]
    columns = next((x.shape[-1] for x in (weight, own) if x is not None), 0)
    how = rule_of(form.rule).fused
    assert how is not None
    drawn = _native.recipe(how.text, q.shape[-1], columns)[1]
    learned = not (weight is None and own is None)
    if weight is None and drawn is not None:
        weight = constant(np.asarray(drawn), q, compute_dtype(q))
    weight, bias = _native.stacked(weight, bias, own, q.shape[-1], jnp)
    if weight is None:
        return rest, (0, 0)
    rest["weight"] = weight.astype(compute_dtype(q))
    if bias is not None:
        rest["bias"] = bias.astype(compute_dtype(q))
    count = 0 if own is None else math.prod(own.shape[:-2])
    return rest, (len(weight) - count if learned else 0, count)


def _unstack(form: CallForm, made: Arrays, given: Arrays) -> Arrays:
    gain, names = given.get("gain"), [name for name in WEIGHTS if name in given]
    if gain is not None:
        made["gain"] = made["gain"].reshape(-1, gain.shape[0]).sum(0).reshape(gain.shape)
    if names:

        def stacked(weights: Arrays) -> Arrays:
            found = _stack(form, {**given, **weights})[0]
            return {name: found[name] for name in ("weight", "bias") if name in made}

        pull = jax.vjp(stacked, {name: given[name] for name in names})[1]
        made.update(pull({name: made[name] for name in ("weight", "bias") if name in made})[0])
    return made


def _plain(form: CallForm, arrays: Arrays) -> Arrays:
    rule, given = rule_of(form.rule), arrays
    weights = {name: given[name] for name in WEIGHTS if name in given}
    if weights:
        chosen = dataclasses.replace(rule.feature_map, **weights)
        rule = dataclasses.replace(rule, feature_map=chosen)
    q, k, v = (given[name].astype(compute_dtype(given[name])) for name in "qkv")
    carry = empty_carry(rule, k, v)
    if "sums" in given:
        near = Near._make(given[name] for name in NEAR) if "near_k" in given else None
        sums = Wide(given["sums"], given.get("sums" + REST))
        carry = Carry(sums, given.get("log_scale"), None, given.get("bad", carry.bad), near)
    rest = (given.get(name) for name in ARRAYS[3:9])
    data = Data._make((q, k, v, *rest, given.get("start", 0), carry, given.get("gain")))
    result = chunked(rule, data)
    hi, lo = result.carry.sums
    made = {"output": result.output, "zero": result.zero, "log_scale": result.carry.log_scale}
    made |= {"sums": hi, "sums" + REST: lo, "bad": result.carry.bad}
    if rule.wants_state and carry.near is not None:
        index = _near_index(rule, data, carry.near)
        assert result.carry.near is not None
        made |= {"near_after": index, "seen_after": result.carry.near.count}
    return {name: x for name, x in made.items() if x is not None}


def _near_index(rule: Rule, data: Data, near: Near) -> Array:
    """Where the tokens that are near after the call come from, as the core says it."""
    whole, slots = near.count.dtype, near.k.shape[-2]
    own = jnp.arange(data.k.shape[-2], dtype=whole)[:, None]
    old = jnp.broadcast_to(-1 - jnp.arange(slots, dtype=whole)[:, None], near.keep.shape)
    own = jnp.broadcast_to(own, (*data.k.shape[:-1], 1))
    carry = data.carry._replace(near=near._replace(positions=old))
    found = after(rule, data._replace(k_positions=own, q_positions=own, carry=carry)).near
    assert found is not None
    return jnp.where(found.keep, found.positions, jnp.iinfo(whole).min)


OPERATORS["attention"] = JaxOperator(
    describe=_describe,
    plain=_plain,
    wide={
        **dict.fromkeys(("sums", "d_sums", "log_scale", "q_positions", "k_positions"), "float64"),
        **dict.fromkeys(("near_positions", "q_scale", "k_scale", "gain"), "float64"),
        "near_count": "int64",
    },
    gradients=("q", "k", "v", "log_decay", "sums", *WEIGHTS, "near_k", "near_v", "gain"),
    state="sums",
    kept=("output", "saved"),
    shared=frozenset({*WEIGHTS, "gain", "start"}),
    broadcast=frozenset({"mask", "query_mask", "restart", "q_positions", "k_positions"}),
    stack=_stack,
    unstack=_unstack,
)
