"""The compiled core for CPU tensors: operators that PyTorch records, traces and differentiates.

`kerneltrick::attend` takes the fields of `Arguments` and gives those of `CoreResult`. Its
derivative is `kerneltrick::attend_backward`, which recomputes φ, and the derivative of that is the
chunked engine's. Fake and meta tensors meet only the functions that say what shapes come out.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from kerneltrick._arrays import Wide, as_numpy, dtype_name, is_concrete, recorded
from kerneltrick.engines import _native
from kerneltrick.engines._chunked import chunked
from kerneltrick.engines._core_call import core
from kerneltrick.engines._native import Arguments, CoreResult
from kerneltrick.engines._native_gradient import give_gradients
from kerneltrick.engines._problem import Carry, Data, Near, Result, Rule, rule_of
from kerneltrick.engines._torch_host import traced
from kerneltrick.engines._torch_operator import (
    Operator,
    apply,
    bits,
    computed_in,
    define,
    dispatch_watched,
    to_torch,
)
from kerneltrick.maps import Fused

if TYPE_CHECKING:
    Tensor: TypeAlias = Any  # PyTorch is optional, and so unknown to the type checker
else:
    Tensor = torch.Tensor

if core() is not None:
    core().share_threads()


class Gradients(NamedTuple):
    """Of the arguments of those names."""

    q: Tensor | None
    k: Tensor | None
    v: Tensor | None
    log_decay: Tensor | None
    sums: Tensor | None
    weight: Tensor | None
    bias: Tensor | None
    key_weight: Tensor | None
    near_k: Tensor | None
    near_v: Tensor | None
    gain: Tensor | None


TENSORS = Arguments._fields.index("rule")  # so many arguments are tensors


def torch_attention(
    rule: Rule, data: Data, how: Fused, watched: bool, scales: _native.Scales
) -> Result:
    """A call on tensors; one whose gradient nobody can ask for needs no operator.

    PyTorch's dispatcher takes longer than a small call.
    """
    if not (how.weight is how.bias is how.key_weight is None):
        how = Fused(how.text, *map(_as_tensor, how[1:]))
    stateless = rule.stateless and not watched
    given = _native.arguments(rule, data, how, scales, stateless)
    if watched or dispatch_watched():
        asked = recorded(*given)
        if asked or (torch.is_grad_enabled() and traced(data.q)):
            given = given._replace(gradient=True)
        made = CoreResult._make(apply(ATTEND, given, asked))
    else:
        made = _forward(given)
    after = data.carry
    if given.sums is not None:
        log_scale = None if after.log_scale is None else made.log_scale
        after = Carry(Wide(made.sums, None), log_scale, after.log_decay, made.bad)
    if rule.wants_state:
        near = None
        if data.carry.near is not None:
            near = _native.near_tokens_at(data, made.near_after, made.seen_after)
        good = is_concrete(made.bad) and not as_numpy(made.bad).any()
        bad = None if good else made.bad
        after = after._replace(log_decay=_decay_after(data), bad=bad, near=near)
    output = made.output if made.output.dtype == data.v.dtype else made.output.to(data.v.dtype)
    return Result(output, made.zero if rule.normalize else None, after)


def _as_tensor(x: Any) -> Tensor | None:
    return x if x is None or torch.is_tensor(x) else torch.as_tensor(np.array(as_numpy(x)))


def _decay_after(data: Data) -> Wide | None:
    """Outside the operator, so that the state's own log-decay has its gradient too."""
    total = data.carry.log_decay
    if total is not None and data.log_decay is not None:
        steps = data.log_decay.double()
        if data.mask is not None:
            steps = torch.where(data.mask, steps, torch.zeros_like(steps))
        if data.restart is not None:
            steps = torch.where(data.restart, torch.full_like(steps, -math.inf), steps)
        return Wide(total.hi + steps.sum(-2, keepdim=True), None)
    if total is not None and data.restart is not None:
        gone = data.restart.any(-2, keepdim=True).expand(total.hi.shape)
        return Wide(torch.where(gone, torch.full_like(total.hi, -math.inf), total.hi), None)
    return total


def _none(dtype: torch.dtype) -> Tensor:
    return torch.empty(0, dtype=dtype)


# The core reads these in the type of q, as they lie; it gets all others as values of NumPy's.
AS_GIVEN = frozenset({"q", "k", "v", "near_k", "near_v"})


_READ = tuple(bits if name in AS_GIVEN else as_numpy for name in Arguments._fields[:TENSORS])


def _plain(given: tuple[Any, ...]) -> Arguments:
    """The same arguments as NumPy arrays, which share the tensors' memory where they can."""
    arrays = [x if x is None else read(x) for x, read in zip(given, _READ, strict=False)]
    return Arguments._make((*arrays, *given[TENSORS:]))


def _forward(arguments: tuple[Any, ...]) -> CoreResult:
    """What the core computes of tensors, as tensors; None where it computes nothing."""
    given, q = _plain(arguments), arguments[0]
    made = _native.compute(given, _native.assemble(given, _native.type_number(dtype_name(q))))
    output = to_torch(made.output, None if given.gradient else q.dtype)
    rest = [x if x is None else torch.from_numpy(x) for x in made[1:]]
    return CoreResult(output, *rest)


# The types of a `CoreResult` after its output.
_REST = (torch.bool, *(torch.float64,) * 2, torch.bool, torch.float64, *(torch.int64,) * 2)


def _attention_forward(*arguments: Any) -> tuple[Tensor, ...]:
    output, *rest = _forward(arguments)
    made = zip(rest, _REST, strict=True)
    return output, *(_none(dtype) if x is None else x for x, dtype in made)


def _attend_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    given = Arguments._make(arguments)
    q, k, v = given.q, given.k, given.v
    rows, lead = q.shape[:-1], k.shape[:-2]
    rule = rule_of(given.rule)
    saved = (1 if rule.all_far else 3, *rows) if given.gradient else (0,)
    index: tuple[Any, ...] = (0,)
    count: tuple[Any, ...] = (0,)
    if given.near_k is not None and rule.wants_state:
        index, count = (*lead, _native.slots_after(given, torch.sym_min), 1), (*lead, 1, 1)

    def empty(shape: tuple[Any, ...], dtype: torch.dtype) -> Tensor:
        return q.new_empty(shape, dtype=dtype)

    return CoreResult(
        empty((*rows, v.shape[-1]), computed_in(q) if given.gradient else q.dtype),
        empty((*rows, 1) if rule.normalize else (0,), torch.bool),
        empty((0,) if given.sums is None else given.sums.shape, torch.float64),
        empty((0,) if given.log_scale is None else given.log_scale.shape, torch.float64),
        empty((0,) if given.sums is None else (*lead, 1, v.shape[-1] + 1), torch.bool),
        empty(saved, torch.float64),
        empty(index, torch.int64),
        empty(count, torch.int64),
    )


def _attend_backward(
    d_output: Tensor, d_sums: Tensor | None, output: Tensor, saved: Tensor, *arguments: Any
) -> Gradients:
    given, asked = _plain(arguments), Arguments._make(arguments)
    call = _native.assemble(given, _native.type_number(dtype_name(asked.q)))
    last = None if d_sums is None else bits(d_sums)
    made = give_gradients(given, call, bits(d_output), last, bits(output), bits(saved))
    call.backward()
    heads, weight, bias, own = call["weight_heads"], asked.weight, asked.bias, asked.key_weight
    wide: list[Any] = [
        None if x is None else to_torch(x)
        for x in (made.log_decay, made.sums, made.weight, made.bias, made.gain)
    ]
    d_decay, d_state, d_weights, d_bias, d_gain = wide
    d_weight = d_own = None
    if weight is not None:
        d_weight = d_weights[:heads]
        d_weight = d_weight.sum_to_size(1, *weight.shape[-2:]) if weight.ndim == 2 else d_weight
        d_weight = d_weight.reshape(weight.shape).to(weight.dtype)
    if own is not None:
        d_own = d_weights[heads:].reshape(own.shape).to(own.dtype).clone()
    if bias is not None:
        count = math.prod(bias.shape[:-1])
        d_bias = d_bias if d_bias.shape[0] == count else d_bias.sum(0, keepdim=True)
        d_bias = d_bias.reshape(bias.shape).to(bias.dtype)
    if asked.log_decay is not None:
        d_decay = d_decay.to(asked.log_decay.dtype)
    if asked.gain is not None and d_gain is not None:
        gain = asked.gain
        d_gain = d_gain.reshape(-1, gain.shape[0]).sum(0).reshape(gain.shape).to(gain.dtype)
    tokens = (
        None if x is None else to_torch(x, asked.q.dtype)
        for x in (*made[:3], made.near_k, made.near_v)
    )
    d_q, d_k, d_v, d_near_k, d_near_v = tokens
    return Gradients(
        d_q, d_k, d_v, d_decay, d_state, d_weight, d_bias, d_own, d_near_k, d_near_v, d_gain
    )


def _sums_gradient(
    d_output: Tensor, d_sums: Tensor | None, output: Tensor, saved: Tensor, *arguments: Any
) -> Tensor | None:
    """The gradient of the sums before the call alone; None where the core has no shorter way."""
    given = _plain(arguments)
    scaled = (given.log_decay, given.restart, given.log_scale)
    if not rule_of(given.rule).all_far or any(x is not None for x in scaled):
        return None
    call = _native.assemble(given, _native.type_number(dtype_name(arguments[0])))
    last = None if d_sums is None else bits(d_sums)
    ends = (bits(d_output), last, bits(output), bits(saved))
    made = give_gradients(given, call, *ends, sums_alone=True)
    call.backward()
    return to_torch(made.sums)


def _by_chunks(given: Arguments) -> tuple[Tensor, Tensor]:
    """Output and sums by the chunked engine, which the host library differentiates."""
    rule = rule_of(given.rule)
    names = ("weight", "bias", "key_weight")
    parts = {name: getattr(given, name) for name in names}
    if any(x is not None for x in parts.values()):
        chosen = rule.feature_map
        fields = {field.name for field in dataclasses.fields(chosen)}
        chosen = dataclasses.replace(chosen, **{k: x for k, x in parts.items() if k in fields})
        rule = dataclasses.replace(rule, feature_map=chosen)
    near = None
    if given.near_k is not None:
        near = Near(
            given.near_k, given.near_v, given.near_positions, given.near_keep, given.near_count
        )
    q, k, v = (x.to(computed_in(x)) for x in (given.q, given.k, given.v))
    carry = Carry(Wide(given.sums, None), given.log_scale, None, given.bad, near)
    result = chunked(rule, Data(q, k, v, *given[3:9], given.start, carry, given.gain))
    return result.output, result.carry.sums.hi


ATTENTION = Operator(
    name="attend",
    arguments=Arguments,
    results=CoreResult,
    followed=("output", "sums"),
    saved=("output", "saved"),
    gradients=Gradients._fields,
    run=_attention_forward,
    shapes=_attend_shapes,
    run_backward=_attend_backward,
    again=_by_chunks,
    shared=("weight", "bias", "key_weight", "gain"),
    batch_axis={"saved": 1},
    alone={"sums": _sums_gradient},
)
ATTEND = define(ATTENTION)
