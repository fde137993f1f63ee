"""The short convolution and the selective scan for CPU tensors, as operators of PyTorch's.

`kerneltrick::short_convolution` takes the fields of `Convolution`, `kerneltrick::selective_scan`
those of `Scan`. Each has an operator for its gradient, whose own derivative is that of the engine
that runs on any array library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch

from kerneltrick._arrays import as_numpy, dtype_name
from kerneltrick.engines import _native_sequence as core_calls
from kerneltrick.engines._convolution import (
    ConvolutionData,
    ConvolutionResult,
    ConvolutionRule,
    direct,
)
from kerneltrick.engines._core_call import core
from kerneltrick.engines._native_sequence import AS_GIVEN, Convolution, Scan, ScanGradients
from kerneltrick.engines._native_torch import (
    OPERATORS,
    _apply,
    _in_front,
    _one_by_one,
    _recorded,
    _register,
    bits,
    to_torch,
)
from kerneltrick.engines._repeat_torch import Repeated, layout, recall, remember
from kerneltrick.engines._scan import ScanData, ScanResult, ScanRule, scan_chunked
from kerneltrick.engines._torch_host import traced

if TYPE_CHECKING:
    Tensor: TypeAlias = Any  # PyTorch is optional, and so unknown to the type checker
    Function: TypeAlias = Any
else:
    Tensor = torch.Tensor
    Function = torch.autograd.Function


class Kind(NamedTuple):
    """How an operator is computed, differentiated and traced."""

    name: str
    arguments: Any  # the NamedTuple of its arguments: tensors first, then numbers
    tensors: int  # so many of them are tensors
    shared: tuple[str, ...]  # those without leading axes
    differentiable: tuple[str, ...]
    compute: Callable[..., tuple[Any, ...]]  # output, state and what else was made, as NumPy's
    gradient: Callable[..., tuple[Any, ...]]  # of the differentiable arguments
    again: Callable[[Any], tuple[Tensor, ...]]  # output and state, by the engine for any library
    shapes: Callable[[Any], tuple[tuple[Any, Any], ...]]  # and dtypes of what is made


def _plain(kind: Kind, arguments: tuple[Any, ...]) -> Any:
    """The arguments as NumPy arrays, which share the tensors' memory where they can."""
    return kind.arguments(*_arrays(kind, arguments), *arguments[kind.tensors :])


def _arrays(kind: Kind, arguments: tuple[Any, ...]) -> list[Any]:
    given = AS_GIVEN[kind.arguments]
    named = zip(kind.arguments._fields, arguments[: kind.tensors], strict=False)
    return [None if x is None else bits(x) if name in given else as_numpy(x) for name, x in named]


def _as_tensors(arrays: tuple[Any, ...], shapes: tuple[tuple[Any, Any], ...]) -> tuple[Tensor, ...]:
    """Arrays of the core as tensors of these dtypes; None as an empty one."""
    return tuple(
        torch.empty(0, dtype=dtype) if x is None else to_torch(x, dtype)
        for x, (_, dtype) in zip(arrays, shapes, strict=True)
    )


def _wide(x: Tensor) -> Any:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _define(kind: Kind) -> Any:
    """Register the operator of a kind and its gradient; the function that autograd records."""
    named = kind.arguments._fields

    def run(*arguments: Any) -> tuple[Tensor, ...]:
        made = kind.compute(_plain(kind, arguments), dtype_name(arguments[0]))
        return _as_tensors(made, kind.shapes(kind.arguments(*arguments)))

    def fake(*arguments: Any) -> tuple[Tensor, ...]:
        shapes = kind.shapes(kind.arguments(*arguments))
        return tuple(arguments[0].new_empty(shape, dtype=dtype) for shape, dtype in shapes)

    def run_backward(d_output: Tensor, d_state: Any, saved: Tensor, *arguments: Any) -> Any:
        given = _plain(kind, arguments)
        in_bits = "state" in AS_GIVEN[kind.arguments]
        d_after = None if d_state is None else bits(d_state) if in_bits else as_numpy(d_state)
        made = kind.gradient(bits(d_output), d_after, bits(saved), given, dtype_name(arguments[0]))
        found = dict(zip(kind.differentiable, made, strict=True))
        gradients = []
        for name, x in zip(named, arguments, strict=True):
            if name in found:
                gradient = found[name]
                if x is None:
                    gradients.append(d_output.new_empty(0))
                elif name in AS_GIVEN[kind.arguments]:
                    gradients.append(to_torch(gradient, x.dtype))
                else:
                    gradients.append(torch.from_numpy(gradient).to(x.dtype).contiguous())
        return tuple(gradients)

    def fake_backward(d_output: Tensor, d_state: Any, saved: Tensor, *arguments: Any) -> Any:
        found = dict(zip(named, arguments, strict=True))
        return tuple(
            d_output.new_empty(0)
            if found[name] is None
            else torch.empty_like(found[name], memory_format=torch.contiguous_format)
            for name in kind.differentiable
        )

    class Operator(Function):  # type: ignore[misc] # PyTorch's
        """The operator with its gradient, for autograd and for torch.func."""

        @staticmethod
        def forward(*arguments: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return OPERATORS[Operator](*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            ctx.save_for_backward(output[2], *inputs[: kind.tensors])
            ctx.numbers = inputs[kind.tensors :]
            ctx.mark_non_differentiable(output[2])
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx: Any, d_output: Any, d_state: Any, _: Any) -> tuple[Any, ...]:
            saved, *tensors = ctx.saved_tensors
            if d_output is None:
                d_output = torch.zeros_like(tensors[0])
            inputs = (*tensors, *ctx.numbers)
            made = _apply(Gradient, (d_output, d_state, saved, *inputs))
            found = dict(zip(kind.differentiable, made, strict=True))
            return tuple(
                found[name] if name in found and needed else None
                for name, needed in zip(named, ctx.needs_input_grad, strict=True)
            )

        @staticmethod
        def vmap(info: Any, dims: tuple[Any, ...], *arguments: Any) -> Any:
            by_name = dict(zip(named, dims, strict=True))
            if any(by_name[name] is not None for name in kind.shared):
                return _one_by_one(Operator, info, dims, arguments)
            *made, saved = _apply(Operator, _batched(kind, info, dims, arguments))
            made.append(saved.reshape(info.batch_size, -1) if saved.numel() else saved)
            return tuple(made), tuple(None if x.numel() == 0 else 0 for x in made)

    class Gradient(Function):  # type: ignore[misc] # PyTorch's
        """Its derivative with one of its own."""

        @staticmethod
        def forward(*arguments: Any) -> Any:
            with torch._C._AutoDispatchBelowAutograd():
                return OPERATORS[Gradient](*arguments)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
            d_output, d_state, _, *given = inputs
            ctx.save_for_backward(d_output, d_state, *given[: kind.tensors])
            ctx.numbers = given[kind.tensors :]
            ctx.set_materialize_grads(False)

        @staticmethod
        def backward(ctx: Any, *seconds: Any) -> tuple[Any, ...]:
            """By the engine for any library, differentiated twice."""
            d_output, d_state, *tensors = ctx.saved_tensors
            given = kind.arguments(*tensors, *ctx.numbers)
            names = [name for name in kind.differentiable if getattr(given, name) is not None]
            ends = (d_output,) if d_state is None else (d_output, d_state)

            def first(ends: Any, *inputs: Tensor) -> Any:
                def again(*inputs: Tensor) -> Any:
                    replaced = given._replace(**dict(zip(names, inputs, strict=True)))
                    return kind.again(replaced)[: len(ends)]

                return torch.func.vjp(again, *inputs)[1](ends)

            made, pull = torch.func.vjp(first, ends, *(getattr(given, name) for name in names))
            asked = dict(zip(kind.differentiable, seconds, strict=True))
            back, *rest = pull(
                tuple(
                    torch.zeros_like(x) if asked[name] is None else asked[name]
                    for name, x in zip(names, made, strict=True)
                )
            )
            found = dict(zip(names, rest, strict=True))
            return (back[0], back[1] if len(back) > 1 else None, None, *map(found.get, named))

        @staticmethod
        def vmap(info: Any, dims: tuple[Any, ...], *arguments: Any) -> Any:
            return _one_by_one(Gradient, info, dims, arguments)  # gradients of weights are sums

    numbers = {"silu": "bool", "softplus": "bool", "wants_state": "bool", "gradient": "bool"}
    optional = {name for name in named if "None" in str(kind.arguments.__annotations__[name])}
    inputs = ", ".join(
        f"{numbers.get(name, 'Tensor?' if name in optional else 'Tensor')} {name}" for name in named
    )
    OPERATORS[Operator] = _register(kind.name, Operator, inputs, 3, run, fake)
    OPERATORS[Gradient] = _register(
        f"{kind.name}_backward",
        Gradient,
        f"Tensor d_output, Tensor? d_state, Tensor saved, {inputs}",
        len(kind.differentiable),
        run_backward,
        fake_backward,
    )
    return Operator


def _batched(kind: Kind, info: Any, dims: tuple[Any, ...], arguments: tuple[Any, ...]) -> Any:
    """The arguments of one call for the whole batch, as one more leading axis."""
    found = list(arguments)
    for at, name in enumerate(kind.arguments._fields[: kind.tensors]):
        x, dim = arguments[at], dims[at]
        if x is None or name in kind.shared or (name in ("mask", "restart") and dim is None):
            continue
        found[at] = _in_front(x, dim, info.batch_size)
    return tuple(found)


def _convolved_shapes(given: Convolution) -> tuple[tuple[Any, Any], ...]:
    x = given.x
    after = (*x.shape[:-2], given.weight.shape[-1] - 1, x.shape[-1])
    return (x.shape, x.dtype), (after if given.wants_state else (0,), x.dtype), ((0,), x.dtype)


def _scanned_shapes(given: Scan) -> tuple[tuple[Any, Any], ...]:
    x, wide = given.x, _wide(given.x)
    after = (*x.shape[:-2], *given.A.shape)
    kept = core_calls.kept_shape(x, given.A.shape[-1])
    return (
        (x.shape, x.dtype),
        (after if given.wants_state else (0,), wide),
        (kept if given.gradient else (0,), wide),
    )


def _convolved_again(given: Convolution) -> tuple[Tensor, ...]:
    rule = ConvolutionRule(given.silu, given.wants_state)
    return tuple(x for x in direct(rule, ConvolutionData(*given[:6])) if x is not None)


def _scanned_again(given: Scan) -> tuple[Tensor, ...]:
    rule = ScanRule(given.softplus, given.wants_state)
    return tuple(x for x in scan_chunked(rule, ScanData(*given[:11])) if x is not None)


CONVOLUTION = Kind(
    name="short_convolution",
    arguments=Convolution,
    tensors=6,
    shared=("weight", "bias"),
    differentiable=("x", "weight", "bias", "state"),
    compute=lambda given, dtype: (*core_calls.convolve(given, dtype), None),
    gradient=lambda d_output, d_after, _, given, dtype: core_calls.convolve_backward(
        d_output, d_after, given, dtype
    ),
    again=_convolved_again,
    shapes=_convolved_shapes,
)
SELECTIVE_SCAN = Kind(
    name="selective_scan",
    arguments=Scan,
    tensors=11,
    shared=("A", "D", "dt_bias"),
    differentiable=ScanGradients._fields,
    compute=core_calls.scan,
    gradient=core_calls.scan_backward,
    again=_scanned_again,
    shapes=_scanned_shapes,
)
CONVOLVE, SCAN = _define(CONVOLUTION), _define(SELECTIVE_SCAN)


KINDS = {kind.name: kind for kind in (CONVOLUTION, SELECTIVE_SCAN)}


def _in_arithmetic(kind: Kind, data: Any) -> Any:
    """The arrays of a call with those that all rows share in the type of arithmetic."""
    wide = _wide(data.x)
    cast = {
        name: x.to(wide)
        for name in kind.shared
        if (x := getattr(data, name)) is not None and x.dtype is not wide
    }
    return data._replace(**cast) if cast else data


def repeat(rule: Any, data: Any) -> Tensor | None:
    found = recall(layout(rule, data))
    if found is None:
        return None
    output = torch.empty(data.x.shape, dtype=data.x.dtype)
    found.run((*_in_arithmetic(KINDS[rule.operator], data), output, data.state))
    return output


def _overwriting(rule: Any, data: Any, assemble: Callable[..., Any]) -> Tensor:
    """The output of a call that overwrites its state, and that is remembered for `repeat`."""
    kind, output = KINDS[rule.operator], torch.empty(data.x.shape, dtype=data.x.dtype)
    call = assemble(_arrays(kind, _in_arithmetic(kind, data)), bits(output))
    call.forward()
    key = layout(rule, data)
    if key is not None and data.mask is None and data.restart is None:
        names = (*data._fields, "output", "state_after")
        remember(key, Repeated(call, names, getattr(core(), f"{kind.name}_forward")))
    return output


def torch_convolution(rule: ConvolutionRule, data: ConvolutionData) -> ConvolutionResult:
    x, state = data.x, data.state
    recorded = _recorded(data)
    eager = not recorded and not traced(x)
    if rule.inplace and eager and state is not None and state.dtype == x.dtype:

        def assemble(arrays: Any, output: Any) -> Any:
            given = Convolution._make((*arrays, rule.silu, True))
            return core_calls.convolution_call(given, dtype_name(x), output, given.state)

        return ConvolutionResult(_overwriting(rule, data, assemble), state)
    if state is not None:
        data = data._replace(state=state.to(x.dtype))
    made = _apply(CONVOLVE, Convolution(*data, rule.silu, rule.wants_state), recorded)
    return ConvolutionResult(made[0], made[1] if rule.wants_state else None)


def torch_scan(rule: ScanRule, data: ScanData) -> ScanResult:
    x, state = data.x, data.state
    recorded = _recorded(data)
    eager = not recorded and not traced(x)
    if rule.inplace and eager and state is not None and state.dtype == _wide(x):

        def assemble(arrays: Any, output: Any) -> Any:
            given = Scan._make((*arrays, rule.softplus, True, False))
            return core_calls.scan_call(given, dtype_name(x), output, given.state, None)

        return ScanResult(_overwriting(rule, data, assemble), state)
    gradient = recorded or (torch.is_grad_enabled() and traced(x))
    made = _apply(SCAN, Scan(*data, rule.softplus, rule.wants_state, gradient), recorded)
    return ScanResult(made[0], made[1] if rule.wants_state else None)
