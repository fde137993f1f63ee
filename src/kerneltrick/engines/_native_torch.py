"""The compiled core for CPU tensors: operators that PyTorch records, traces and differentiates.

`kerneltrick::attend` takes the fields of `Arguments` and gives those of `CoreResult`. Its
derivative is `kerneltrick::attend_backward`, which recomputes φ, and the derivative of that is the
chunked engine's. Fake and meta tensors meet only the functions that say what shapes come out.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import torch

from kerneltrick._arrays import Wide, as_numpy, dtype_name, is_concrete
from kerneltrick.engines import _native
from kerneltrick.engines._chunked import chunked
from kerneltrick.engines._core_call import aligned, core
from kerneltrick.engines._native import Arguments, CoreResult
from kerneltrick.engines._native_gradient import give_gradients
from kerneltrick.engines._problem import Carry, Data, Near, Result, Rule, rule_of
from kerneltrick.engines._torch_host import traced
from kerneltrick.maps import Fused

if TYPE_CHECKING:
    Tensor: TypeAlias = Any  # PyTorch is optional, and so unknown to the type checker
    Function: TypeAlias = Any
else:
    Tensor = torch.Tensor
    Function = torch.autograd.Function

if core() is not None:
    core().share_threads()


class Gradients(NamedTuple):
    """Of the arguments of those names; empty where there is none."""

    q: Tensor
    k: Tensor
    v: Tensor
    log_decay: Tensor
    sums: Tensor
    weight: Tensor
    bias: Tensor
    key_weight: Tensor
    near_k: Tensor
    near_v: Tensor
    gain: Tensor


TENSORS = Arguments._fields.index("rule")  # so many arguments are tensors
DIFFERENTIABLE = tuple(Arguments._fields.index(name) for name in Gradients._fields)


def torch_attention(
    rule: Rule, data: Data, how: Fused, recorded: bool, scales: _native.Scales
) -> Result:
    """A call on tensors; one whose gradient nobody can ask for needs no operator.

    PyTorch's dispatcher takes longer than a small call.
    """
    if not (how.weight is how.bias is how.key_weight is None):
        how = Fused(how.text, *map(_as_tensor, how[1:]))
    stateless = rule.stateless and not recorded
    given = _native.arguments(rule, data, how, scales, stateless)
    if recorded or _dispatch_watched():
        asked = _recorded(given)
        if asked or (torch.is_grad_enabled() and traced(data.q)):
            given = given._replace(gradient=True)
        made = CoreResult._make(_apply(_AttentionFunction, given, asked))
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


def _compute(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def bits(x: Tensor) -> Any:
    """The memory of a tensor as NumPy sees it: bfloat16, which NumPy lacks, as int16.

    Only for what the core reads or writes in the type that the call declares (`AS_GIVEN`). The
    values of any other tensor come from `as_numpy`, which turns bfloat16 into float32.
    """
    if x.requires_grad:
        x = x.detach()
    if x.is_neg():
        x = x.resolve_neg()
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()


def to_torch(x: Any, dtype: torch.dtype | None = None) -> Tensor:
    made = torch.from_numpy(x)
    return made.view(torch.bfloat16) if dtype == torch.bfloat16 else made


def _copy(x: Tensor) -> Tensor:
    """As x.clone(), which would have to fault in fresh pages."""
    if traced(x):
        return x.clone()
    return to_torch(aligned(tuple(x.shape), bits(x).dtype), x.dtype).copy_(x)


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
        empty((*rows, v.shape[-1]), _compute(q) if given.gradient else q.dtype),
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
) -> tuple[Tensor, ...]:
    given, asked = _plain(arguments), Arguments._make(arguments)
    call = _native.assemble(given, _native.type_number(dtype_name(asked.q)))
    last = None if d_sums is None else bits(d_sums)
    made = give_gradients(given, call, bits(d_output), last, bits(output), bits(saved))
    d_decay, d_state, d_weight, d_bias, d_gain = (
        _none(torch.float64) if x is None else to_torch(x)
        for x in (made.log_decay, made.sums, made.weight, made.bias, made.gain)
    )
    d_near_k, d_near_v = (
        _none(torch.float64) if x is None else to_torch(x, asked.q.dtype)
        for x in (made.near_k, made.near_v)
    )
    weight, bias, own = asked.weight, asked.bias, asked.key_weight
    d_weight, d_own = d_weight[: call["weight_heads"]], d_weight[call["weight_heads"] :]
    call.backward()
    if weight is not None:
        d_weight = d_weight.sum_to_size(1, *weight.shape[-2:]) if weight.ndim == 2 else d_weight
        d_weight = d_weight.reshape(weight.shape).to(weight.dtype)
    else:
        d_weight = _none(torch.float64)
    if own is not None:
        d_own = d_own.reshape(own.shape).to(own.dtype).clone()
    else:
        d_own = _none(torch.float64)
    if bias is not None:
        count = math.prod(bias.shape[:-1])
        d_bias = d_bias if d_bias.shape[0] == count else d_bias.sum(0, keepdim=True)
        d_bias = d_bias.reshape(bias.shape).to(bias.dtype)
    if asked.log_decay is not None:
        d_decay = d_decay.to(asked.log_decay.dtype)
    if asked.gain is not None and made.gain is not None:
        gain = asked.gain
        d_gain = d_gain.reshape(-1, gain.shape[0]).sum(0).reshape(gain.shape).to(gain.dtype)
    first = (to_torch(x, asked.q.dtype) for x in made[:3])
    return (*first, d_decay, d_state, d_weight, d_bias, d_own, d_near_k, d_near_v, d_gain)


def _attend_backward_shapes(
    d_output: Tensor, d_sums: Tensor | None, output: Tensor, saved: Tensor, *arguments: Any
) -> tuple[Tensor, ...]:
    given = Arguments._make(arguments)

    def like(x: Any) -> Tensor:
        if x is None:
            return output.new_empty(0, dtype=torch.float64)
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    return Gradients._make(like(getattr(given, name)) for name in Gradients._fields)


class _AttentionFunction(Function):  # type: ignore[misc] # PyTorch's
    """The operator with its gradient, for autograd and for torch.func."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return OPERATORS[_AttentionFunction](*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        made, given = CoreResult._make(output), Arguments._make(inputs)
        # The caller may change what it gets, unless that is another array in another type.
        kept = _copy(made.output) if made.output.dtype == given.v.dtype else made.output
        ctx.save_for_backward(kept, made.saved, *inputs[:TENSORS])
        ctx.numbers = inputs[TENSORS:]
        ctx.mark_non_differentiable(made.zero, *made[3:])
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, d_output: Any, _z: Any, d_sums: Any, *_: Any) -> tuple[Any, ...]:
        output, saved, *tensors = ctx.saved_tensors
        inputs = (*tensors, *ctx.numbers)
        d_output = _or_zeros(d_output, output)
        made = _apply(_AttendBackward, (d_output, d_sums, output, saved, *inputs))
        grads: list[Any] = [None] * len(inputs)
        for at, gradient in zip(DIFFERENTIABLE, made, strict=True):
            if ctx.needs_input_grad[at]:
                grads[at] = gradient.to(inputs[at].dtype)
        return tuple(grads)

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *arguments: Any) -> Any:
        by_one = [arguments[at] for at in SHARED if dims[at] is not None]
        if by_one:
            return _one_by_one(_AttentionFunction, info, dims, arguments)
        made = CoreResult._make(_apply(_AttentionFunction, _batched(info, dims, arguments)))
        return made, _batch_axes(made, CoreResult(0, 0, 0, 0, 0, 1, 0, 0))


class _AttendBackward(Function):  # type: ignore[misc] # PyTorch's
    """Its derivative with one of its own."""

    @staticmethod
    def forward(*arguments: Any) -> Any:
        with torch._C._AutoDispatchBelowAutograd():
            return OPERATORS[_AttendBackward](*arguments)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        d_output, d_sums, _, _, *given = inputs
        ctx.save_for_backward(d_output, d_sums, *given[:TENSORS])
        ctx.numbers = given[TENSORS:]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *seconds: Any) -> tuple[Any, ...]:
        """By the chunked engine, differentiated twice: the core has first derivatives only."""
        d_output, d_sums, *tensors = ctx.saved_tensors
        given = Arguments(*tensors, *ctx.numbers)
        names = [name for name in Gradients._fields if getattr(given, name) is not None]
        inputs = [getattr(given, name) for name in names]

        def first(d_output: Tensor, d_sums: Tensor, *inputs: Tensor) -> Any:
            def again(*inputs: Tensor) -> Any:
                return _by_chunks(given._replace(**dict(zip(names, inputs, strict=True))))

            return torch.func.vjp(again, *inputs)[1]((d_output, d_sums))

        none = torch.zeros_like(given.sums)
        made, pull = torch.func.vjp(first, d_output, none if d_sums is None else d_sums, *inputs)
        asked = zip(names, made, strict=True)
        seconds = Gradients._make(seconds)
        back = pull(tuple(_or_zeros(getattr(seconds, name), x) for name, x in asked))
        found = dict(zip(names, back[2:], strict=True))
        return (
            back[0],
            None if d_sums is None else back[1],
            None,
            None,
            *(found.get(name) for name in Arguments._fields),
        )

    @staticmethod
    def vmap(info: Any, dims: tuple[Any, ...], *arguments: Any) -> Any:
        if any(arguments[4 + at] is not None for at in SHARED):  # their gradients would be summed
            return _one_by_one(_AttendBackward, info, dims, arguments)
        d_output, d_sums, output, saved = (
            None if x is None else _in_front(x, dim, info.batch_size, axis)
            for x, dim, axis in zip(arguments[:4], dims[:4], (0, 0, 0, 1), strict=True)
        )
        rest = _batched(info, dims[4:], arguments[4:])
        made = Gradients._make(_apply(_AttendBackward, (d_output, d_sums, output, saved, *rest)))
        return made, _batch_axes(made, Gradients._make((0,) * len(made)))


def _or_zeros(gradient: Tensor | None, like: Tensor) -> Tensor:
    return torch.zeros_like(like) if gradient is None else gradient


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
    q, k, v = (x.to(_compute(x)) for x in (given.q, given.k, given.v))
    carry = Carry(Wide(given.sums, None), given.log_scale, None, given.bad, near)
    result = chunked(rule, Data(q, k, v, *given[3:9], given.start, carry, given.gain))
    return result.output, result.carry.sums.hi


# Arguments without leading axes, which a batch cannot have one each of.
SHARED = tuple(Arguments._fields.index(name) for name in ("weight", "bias", "key_weight", "gain"))
# Those with one entry for all heads or for each: the others have all leading axes.
BROADCAST = tuple(
    Arguments._fields.index(name)
    for name in ("mask", "query_mask", "restart", "q_positions", "k_positions")
)


def _in_front(x: Tensor, dim: int | None, size: int, axis: int = 0) -> Tensor:
    """x with its batch axis at `axis`; one is made if it has none."""
    if dim is not None:
        return x.movedim(dim, axis)
    return x.unsqueeze(axis).expand(*x.shape[:axis], size, *x.shape[axis:])


def _batched(info: Any, dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of one call for the whole batch, as one more leading axis."""
    found = list(arguments)
    for at in range(TENSORS):
        x, dim = arguments[at], dims[at]
        if x is None or at in SHARED or (at in BROADCAST and dim is None):
            continue
        found[at] = _in_front(x, dim, info.batch_size)
    return tuple(found)


def _batch_axes(made: Any, axes: Any) -> Any:
    return axes._make(None if x.numel() == 0 else axis for x, axis in zip(made, axes, strict=True))


def _one_by_one(function: Any, info: Any, dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> Any:
    calls = []
    for i in range(info.batch_size):
        own = (
            x if dim is None else x.select(dim, i) for x, dim in zip(arguments, dims, strict=True)
        )
        calls.append(_apply(function, tuple(own)))
    made = tuple(torch.stack(parts) for parts in zip(*calls, strict=True))
    return made, (0,) * len(made)


def _recorded(arguments: tuple[Any, ...]) -> bool:
    """Whether autograd will ask for the gradient of what is made of these."""
    return bool(torch.is_grad_enabled() and torch._C._any_requires_grad(*arguments))


def _dispatch_watched() -> bool:
    """Whether somebody sees every operator: a mode that counts operations, or a profiler."""
    return bool(
        torch._C._len_torch_dispatch_stack() or torch.autograd.profiler._is_profiler_enabled
    )


def _apply(function: Any, arguments: tuple[Any, ...], recorded: bool | None = None) -> Any:
    """The operator of a function; torch.func sees only functions that say how to be batched."""
    if torch._C._are_functorch_transforms_active():
        return function.apply(*arguments)
    if _recorded(arguments) if recorded is None else recorded:
        return OPERATORS[function](*arguments)
    with torch._C._AutoDispatchBelowAutograd():  # which would only pass it on
        return OPERATORS[function](*arguments)


def _register(name: str, function: Any, inputs: str, outputs: int, run: Any, shapes: Any) -> Any:
    """An operator that computes by `run` on CPU tensors, and is differentiated by `function`."""
    made = ", ".join(["Tensor"] * outputs)
    tag = torch.Tag.pt2_compliant_tag
    LIBRARY.define(f"{name}({inputs}) -> ({made})", tags=(tag,))
    operator = getattr(torch.ops.kerneltrick, name).default
    LIBRARY.impl(name, run, "CPU")
    torch.library.register_fake(f"kerneltrick::{name}", shapes, lib=LIBRARY)

    def autograd(*arguments: Any) -> Any:
        if _recorded(arguments):
            return function.apply(*arguments)
        with torch._C._AutoDispatchBelowAutograd():
            return operator(*arguments)

    LIBRARY.impl(name, autograd, "Autograd")
    return operator


LIBRARY = torch.library.Library("kerneltrick", "FRAGMENT")
_NUMBERS = {"rule": "str", "start": "SymInt", "gradient": "bool"}
_NEEDED = ("q", "k", "v")
_INPUTS = ", ".join(
    f"{_NUMBERS.get(name, 'Tensor' if name in _NEEDED else 'Tensor?')} {name}"
    for name in Arguments._fields
)
OPERATORS: dict[Any, Callable[..., Any]] = {
    _AttentionFunction: _register(
        "attend",
        _AttentionFunction,
        _INPUTS,
        len(CoreResult._fields),
        _attention_forward,
        _attend_shapes,
    ),
    _AttendBackward: _register(
        "attend_backward",
        _AttendBackward,
        f"Tensor d_output, Tensor? d_sums, Tensor output, Tensor saved, {_INPUTS}",
        len(Gradients._fields),
        _attend_backward,
        _attend_backward_shapes,
    ),
}
