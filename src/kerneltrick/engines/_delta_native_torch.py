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
    empty_state,
)
from kerneltrick.engines._native import type_number
from kerneltrick.engines._native_torch import (
    OPERATORS,
    _apply,
    _compute,
    _in_front,
    _or_zeros,
    _recorded,
    _register,
    bits,
    to_torch,
)
from kerneltrick.engines._repeat_torch import Repeated, layout, recall, remember
from kerneltrick.engines._torch_host import traced

if TYPE_CHECKING:
    Tensor: TypeAlias = Any  # PyTorch is optional, and so unknown to the type checker
    Function: TypeAlias = Any
else:
    Tensor = torch.Tensor
    Function = torch.autograd.Function

TENSORS = DeltaArguments._fields.index("rule")  # so many arguments are tensors
DIFFERENTIABLE = tuple(DeltaArguments._fields.index(name) for name in DeltaGradients._fields)
BROADCAST = tuple(DeltaArguments._fields.index(name) for name in ("mask", "restart"))


def run(rule: DeltaRule, data: DeltaData) -> DeltaResult:
    given = _delta_native.delta_arguments(rule, data)
    recorded = _recorded(given)
    if recorded or (torch.is_grad_enabled() and traced(data.q)):
        given = given._replace(gradient=True)
    made = DeltaMade._make(_apply(_Delta, given, recorded))
    return DeltaResult(made.output, made.state if rule.wants_state else None)


def step(
    tokens: tuple[Tensor, ...], before: Tensor, normalize: bool, scale: float
) -> tuple[Tensor, Tensor] | None:
    """One token: q, k, v, beta and log_decay, whose length is 1. The output and the state after it.

    None if the core may not have these tensors as they are.
    """
    q, k, v, beta, log_decay = tokens
    wide = _compute(q)
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


def _tensor(x: Any, dtype: torch.dtype) -> Tensor:
    """An array of the core as a tensor of this type; None as an empty one."""
    return torch.empty(0, dtype=dtype) if x is None else to_torch(x, dtype)


def _forward(*arguments: Any) -> tuple[Tensor, ...]:
    given, q = _plain(arguments), arguments[0]
    call = _delta_native.assemble(given, type_number(dtype_name(q)))
    made = _delta_native.compute(given, call)
    wide = _compute(q)
    return _tensor(made.output, q.dtype), _tensor(made.state, wide), _tensor(made.states, wide)


def _forward_shapes(*arguments: Any) -> tuple[Tensor, ...]:
    given = DeltaArguments._make(arguments)
    q, v = given.q, given.v
    kept = (*v.shape[:-2], kept_states(v.shape[-2]) * q.shape[-1] * v.shape[-1])
    return (
        v.new_empty(v.shape),
        v.new_empty((0,) if given.state is None else given.state.shape, dtype=_compute(v)),
        v.new_empty(kept if given.gradient else (0,), dtype=_compute(v)),
    )


def _backward(
    d_output: Tensor, d_state: Tensor | None, states: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    given, asked = _plain(arguments), DeltaArguments._make(arguments)
    call = _delta_native.assemble(given, type_number(dtype_name(asked.q)))
    last = None if d_state is None else bits(d_state)
    kept = bits(states) if states.numel() else None
    made = _delta_native.differentiate(given, call, bits(d_output), last, kept)
    found = []
    for name, x in made._asdict().items():
        like = getattr(asked, name)
        gradient = _tensor(x, _compute(asked.q) if like is None else like.dtype)
        if like is not None and gradient.shape != like.shape:  # over the value heads of a key head
            heads, groups = like.shape[-3], gradient.shape[-3] // like.shape[-3]
            gradient = gradient.unflatten(-3, (heads, groups))
            gradient = gradient.sum(-3, dtype=_compute(like)).to(like.dtype)
        found.append(gradient)
    return tuple(found)


def _backward_shapes(
    d_output: Tensor, d_state: Tensor | None, states: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    given = DeltaArguments._make(arguments)

    def like(x: Any) -> Tensor:
        if x is None:
            return d_output.new_empty(0, dtype=_compute(d_output))
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    return tuple(like(getattr(given, name)) for name in DeltaGradients._fields)


class _Delta(Function):  # type: ignore[misc] # PyTorch's
    """The operator with its gradient, for autograd and for torch.func."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return OPERATORS[_Delta](*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        made = DeltaMade._make(output)
        ctx.save_for_backward(made.states, *inputs[:TENSORS])
        ctx.numbers = inputs[TENSORS:]
        ctx.mark_non_differentiable(made.states)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_output: Any, d_state: Any, _: Any) -> tuple[Any, ...]:
        states, *tensors = ctx.saved_tensors
        inputs = (*tensors, *ctx.numbers)
        d_output = _or_zeros(d_output, inputs[2])
        if d_state is not None and inputs[TENSORS - 1] is None:
            d_state = None  # of the empty tensor that stands for no state
        made = _apply(_DeltaBackward, (d_output, d_state, states, *inputs))
        grads: list[Any] = [None] * len(inputs)
        for at, gradient in zip(DIFFERENTIABLE, made, strict=True):
            if ctx.needs_input_grad[at]:
                grads[at] = gradient
        return tuple(grads)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *arguments: Any) -> Any:
        made = _apply(_Delta, _batched(info, dims, arguments))
        return made, tuple(None if x.numel() == 0 else 0 for x in made)


class _DeltaBackward(Function):  # type: ignore[misc] # PyTorch's
    """Its derivative with one of its own."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return OPERATORS[_DeltaBackward](*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        d_output, d_state, _, *given = inputs
        ctx.save_for_backward(d_output, d_state, *given[:TENSORS])
        ctx.numbers = given[TENSORS:]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *seconds: Any) -> tuple[Any, ...]:
        """By the chunked engine, differentiated twice: the core has first derivatives only."""
        d_output, d_state, *tensors = ctx.saved_tensors
        given = DeltaArguments(*tensors, *ctx.numbers)
        names = [name for name in DeltaGradients._fields if getattr(given, name) is not None]
        inputs = [getattr(given, name) for name in names]

        def first(d_output: Tensor, d_state: Tensor, *inputs: Tensor) -> Any:
            def again(*inputs: Tensor) -> Any:
                return _by_chunks(given._replace(**dict(zip(names, inputs, strict=True))))

            return torch.func.vjp(again, *inputs)[1]((d_output, d_state))

        last = empty_state(given.k, given.v) if d_state is None else d_state
        made, pull = torch.func.vjp(first, d_output, last, *inputs)
        wanted = dict(zip(DeltaGradients._fields, seconds, strict=True))
        back = pull(tuple(_or_zeros(wanted[n], x) for n, x in zip(names, made, strict=True)))
        found = dict(zip(names, back[2:], strict=True))
        rest = (found.get(name) for name in DeltaArguments._fields)
        return back[0], None if d_state is None else back[1], None, *rest

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *arguments: Any) -> Any:
        first = (
            None if x is None else _in_front(x, dim, info.batch_size)
            for x, dim in zip(arguments[:3], dims[:3], strict=True)
        )
        made = _apply(_DeltaBackward, (*first, *_batched(info, dims[3:], arguments[3:])))
        return made, tuple(None if x.numel() == 0 else 0 for x in made)


def _by_chunks(given: DeltaArguments) -> tuple[Tensor, Tensor]:
    """Output and state by the chunked engine, which the host library differentiates."""
    rule = dataclasses.replace(delta_rule_of(given.rule), wants_state=True)
    output, state = delta_chunked(rule, DeltaData._make((*given[:TENSORS], given.start)))
    return output, state


def _batched(info: Any, dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of one call for the whole batch, as one more leading axis."""
    found = list(arguments)
    for at in range(TENSORS):
        x, dim = arguments[at], dims[at]
        if x is not None and not (at in BROADCAST and dim is None):
            found[at] = _in_front(x, dim, info.batch_size)
    return tuple(found)


_NUMBERS = {"rule": "str", "start": "SymInt", "gradient": "bool"}
_INPUTS = ", ".join(
    f"{_NUMBERS.get(name, 'Tensor' if name in ('q', 'k', 'v') else 'Tensor?')} {name}"
    for name in DeltaArguments._fields
)
OPERATORS[_Delta] = _register(
    "delta_rule", _Delta, _INPUTS, len(DeltaMade._fields), _forward, _forward_shapes
)
OPERATORS[_DeltaBackward] = _register(
    "delta_rule_backward",
    _DeltaBackward,
    f"Tensor d_output, Tensor? d_state, Tensor states, {_INPUTS}",
    len(DeltaGradients._fields),
    _backward,
    _backward_shapes,
)
