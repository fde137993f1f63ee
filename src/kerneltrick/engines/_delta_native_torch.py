"""The compiled delta rule for CPU tensors: operators that PyTorch records, traces, differentiates.

`kerneltrick::delta_rule` takes the fields of `DeltaArguments` and gives those of `DeltaMade`. Its
derivative is `kerneltrick::delta_rule_backward`; the derivative of that is the chunked engine's.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from kerneltrick._arrays import dtype_name, recorded
from kerneltrick.engines import _delta_native
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
    to_torch,
    to_torch_or_empty,
)

if TYPE_CHECKING:
    Tensor: TypeAlias = Any  # PyTorch is optional, and so unknown to the type checker
else:
    Tensor = torch.Tensor

CONTIGUOUS = torch.contiguous_format
TENSORS = DeltaArguments._fields.index("rule")  # so many arguments are tensors


def run(rule: DeltaRule, data: DeltaData) -> DeltaResult:
    given = _delta_native.delta_arguments(rule, data)
    asked = recorded(*given)
    if asked or (torch.is_grad_enabled() and traced(data.q)):
        given = given._replace(gradient=True)
    made = DeltaMade._make(apply(DELTA, given, asked))
    return DeltaResult(made.output, made.state if rule.wants_state else None)


def step(
    tokens: tuple[Tensor, ...], before: Tensor, normalize: bool, scale: float
) -> tuple[Tensor, Tensor] | None:
    """One token, tokens before heads: q and k (batch, 1, H_k, d), v (batch, 1, H_v, M), beta and
    log_decay. The output and the state (batch, H_v, d, M) after it.

    None if the core may not have these tensors as they are.
    """
    q, k, v, beta, log_decay = tokens
    wide = computed_in(q)
    if beta.dtype is not wide:
        beta = beta.to(wide)
    if log_decay.dtype is not wide:
        log_decay = log_decay.to(wide)
    if before.dtype is not wide or not before.is_contiguous():
        before = before.to(wide).contiguous()
    output, state = torch.empty_like(v, memory_format=CONTIGUOUS), torch.empty_like(before)
    given = (q, k, v, beta, log_decay, before, state, output)
    key, addresses = layout(("delta_step", normalize, scale), given)
    found = recall(key)
    if found is None:
        if key is None or not _fits_a_step(*given[:6]):
            return None
        rule = DeltaRule(scale=scale, normalize_qk=normalize)
        columns = (x if x.ndim == v.ndim else x[..., None] for x in (beta, log_decay))
        arrays = (*(x.transpose(1, 2) for x in (q, k, v, *columns)), *(None,) * 5)
        call = _delta_native.assemble(
            _plain((*arrays, rule.text, 0, False)), type_number(dtype_name(q))
        )
        by_head = output.transpose(1, 2)
        call.view("output", bits(by_head), by_head.shape[:-2])
        names = ("q", "k", "v", "beta", "log_decay", "state_before", "state", "output")
        found = Repeated(call, names, "delta_rule_step")
        remember(key, found)
    found.run(addresses)
    return output, state


def _fits_a_step(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, log_decay: Tensor, before: Tensor
) -> bool:
    """Whether the tensors of a step have the shapes that the core takes for granted."""
    if not (q.ndim == v.ndim == 4 and q.shape == k.shape and q.dtype == k.dtype == v.dtype):
        return False
    (batch, length, keys, d), (heads, width) = q.shape, v.shape[2:]
    each = (batch, length, heads)
    return bool(
        length == 1
        and v.shape[:2] == q.shape[:2]
        and keys > 0
        and heads % keys == 0
        and beta.shape == each
        and log_decay.shape in (each, (*each, d))
        and before.shape == (batch, heads, d, width)
    )


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
