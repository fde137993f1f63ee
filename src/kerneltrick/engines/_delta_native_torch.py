"""The compiled delta rule for CPU tensors: operators that PyTorch records, traces, differentiates.

`kerneltrick::delta_rule` takes the fields of `DeltaArguments` and gives those of `DeltaMade`. Its
derivative is `kerneltrick::delta_rule_backward`; the derivative of that is the chunked engine's.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from kerneltrick._arrays import dtype_name
from kerneltrick.engines import _delta_native
from kerneltrick.engines._core_call import core
from kerneltrick.engines._delta_chunked import delta_chunked
from kerneltrick.engines._delta_native import (
    DeltaArguments,
    DeltaGradients,
    DeltaMade,
    kept_states,
)
from kerneltrick.engines._delta_problem import (
    DeltaData,
    DeltaResult,
    DeltaRule,
    delta_rule_of,
)
from kerneltrick.engines._native import type_number
from kerneltrick.engines._repeat_torch import Repeated, layout, recall, remember
from kerneltrick.engines._torch_host import traced
from kerneltrick.engines._torch_operator import (
    Operator,
    apply,
    bits,
    computed_in,
    define,
    recorded,
    to_torch,
    to_torch_or_empty,
)

if TYPE_CHECKING:
    Tensor: TypeAlias = Any  # PyTorch is optional, and so unknown to the type checker
else:
    Tensor = torch.Tensor

TENSORS = DeltaArguments._fields.index("rule")  # so many arguments are tensors


def run(rule: DeltaRule, data: DeltaData) -> DeltaResult:
    given = _delta_native.delta_arguments(rule, data)
    asked = recorded(given)
    if asked or (torch.is_grad_enabled() and traced(data.q)):
        given = given._replace(gradient=True)
    made = DeltaMade._make(apply(DELTA, given, asked))
    return DeltaResult(made.output, made.state if rule.wants_state else None)


def step(
    tokens: tuple[Tensor, ...], before: Tensor, normalize: bool, scale: float
) -> tuple[Tensor, Tensor] | None:
    """One token: q, k, v, beta and log_decay, whose length is 1. The output and the state after it.

    None if the core may not have these tensors as they are.
    """
    q, k, v, beta, log_decay = tokens
    wide = computed_in(q)
    before = before.to(wide, memory_format=torch.contiguous_format)
    given = (q, k, v, beta.to(wide), log_decay.to(wide), before)
    key = layout(("delta_step", normalize, scale), given)
    if key is None or not q.dtype == k.dtype == v.dtype:
        return None
    output, state = torch.empty(v.shape, dtype=v.dtype), torch.empty(before.shape, dtype=wide)
    found = recall(key)
    if found is None:
        rule = DeltaRule(scale=scale, normalize_qk=normalize)
        columns = (x if x.ndim == v.ndim else x[..., None] for x in given[3:5])
        arrays = (q, k, v, *columns, *(None,) * 5)
        call = _delta_native.assemble(
            _plain((*arrays, rule.text, 0, False)), type_number(dtype_name(q))
        )
        call.view("output", bits(output), v.shape[:-2])
        names = ("q", "k", "v", "beta", "log_decay", "state_before", "state", "output")
        found = Repeated(call, names, core().delta_rule_step)
        remember(key, found)
    found.run((*given, state, output))
    return output, state


def _plain(arguments: tuple[Any, ...]) -> DeltaArguments:
    """The arguments as NumPy arrays that share the tensors' memory."""
    arrays = (None if x is None else bits(x) for x in arguments[:TENSORS])
    return DeltaArguments._make((*arrays, *arguments[TENSORS:]))


def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    given, q = _plain(arguments), arguments[0]
    call = _delta_native.assemble(given, type_number(dtype_name(q)))
    made = _delta_native.compute(given, call)
    wide = computed_in(q)
    types = (q.dtype, wide, wide)
    return tuple(to_torch_or_empty(x, dtype) for x, dtype in zip(made, types, strict=True))


def _forward_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    given = DeltaArguments._make(arguments)
    q, v = given.q, given.v
    kept = (*v.shape[:-2], kept_states(v.shape[-2]) * q.shape[-1] * v.shape[-1])
    return (
        v.new_empty(v.shape),
        v.new_empty((0,) if given.state is None else given.state.shape, dtype=computed_in(v)),
        v.new_empty(kept if given.gradient else (0,), dtype=computed_in(v)),
    )


def _backward(
    d_output: Tensor, d_state: Tensor | None, states: Tensor, *arguments: Any
) -> tuple[Tensor | None, ...]:
    given, asked = _plain(arguments), DeltaArguments._make(arguments)
    call = _delta_native.assemble(given, type_number(dtype_name(asked.q)))
    last = None if d_state is None else bits(d_state)
    kept = bits(states) if states.numel() else None
    made = _delta_native.differentiate(given, call, bits(d_output), last, kept)
    found = []
    for name, x in made._asdict().items():
        like = getattr(asked, name)
        gradient = None if x is None or like is None else to_torch(x, like.dtype)
        if gradient is not None and gradient.shape != like.shape:  # the value heads of a key head
            heads, groups = like.shape[-3], gradient.shape[-3] // like.shape[-3]
            gradient = gradient.unflatten(-3, (heads, groups))
            gradient = gradient.sum(-3, dtype=computed_in(like)).to(like.dtype)
        found.append(gradient)
    return tuple(found)


def _by_chunks(given: DeltaArguments) -> tuple[Tensor, Tensor]:
    """Output and state by the chunked engine, which the host library differentiates."""
    rule = dataclasses.replace(delta_rule_of(given.rule), wants_state=True)
    output, state = delta_chunked(rule, DeltaData._make((*given[:TENSORS], given.start)))
    return output, state


DELTA_RULE = Operator(
    name="delta_rule",
    arguments=DeltaArguments,
    results=DeltaMade,
    followed=("output", "state"),
    saved=("states",),
    gradients=DeltaGradients._fields,
    run=_forward,
    shapes=_forward_shapes,
    run_backward=_backward,
    again=_by_chunks,
)
DELTA = define(DELTA_RULE)
