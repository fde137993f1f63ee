"""The short convolution and the selective scan for CPU tensors, as operators of PyTorch's.

`kerneltrick::short_convolution` takes the fields of `Convolution`, `kerneltrick::selective_scan`
those of `Scan`. Each has an operator for its gradient, whose own derivative is that of the engine
that runs on any array library.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
from torch.autograd.graph import increment_version

from kerneltrick._arrays import as_numpy, dtype_name, is_overwritable, recorded
from kerneltrick.engines import _native_sequence as core_calls
from kerneltrick.engines._convolution import (
    ConvolutionData,
    ConvolutionResult,
    ConvolutionRule,
    direct,
)
from kerneltrick.engines._native import CODES
from kerneltrick.engines._native_sequence import AS_GIVEN, Convolution, Scan, ScanGradients
from kerneltrick.engines._repeat_torch import Repeated, layout, recall, remember
from kerneltrick.engines._scan import ScanData, ScanResult, ScanRule, scan_chunked
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


class Results(NamedTuple):
    output: Tensor
    state: Tensor
    saved: Tensor


def _arrays(named: Any, arguments: tuple[Any, ...]) -> list[Any]:
    """The tensors among the arguments as NumPy arrays, which share their memory where they can."""
    given = AS_GIVEN[named]
    return [
        None if x is None else bits(x) if name in given else as_numpy(x)
        for name, x in zip(named._fields, arguments, strict=False)
    ]


def _operator(
    name: str,
    named: Any,  # the NamedTuple of its arguments
    shared: tuple[str, ...],
    gradients: tuple[str, ...],
    compute: Callable[..., tuple[Any, ...]],  # what `Results` has, as NumPy's
    differentiate: Callable[..., tuple[Any, ...]],
    again: Callable[[Any], tuple[Tensor, ...]],
    shapes: Callable[[Any], tuple[tuple[Any, Any], ...]],  # and dtypes of what `Results` has
) -> Operator:
    def plain(arguments: tuple[Any, ...]) -> Any:
        return named(*_arrays(named, arguments[:tensors]), *arguments[tensors:])

    def run(*arguments: Any) -> tuple[Tensor, ...]:
        made = compute(plain(arguments), dtype_name(arguments[0]))
        types = (dtype for _, dtype in shapes(named(*arguments)))
        return tuple(to_torch_or_empty(x, dtype) for x, dtype in zip(made, types, strict=True))

    def fake(*arguments: Any) -> tuple[Tensor, ...]:
        found = shapes(named(*arguments))
        return tuple(arguments[0].new_empty(shape, dtype=dtype) for shape, dtype in found)

    def run_backward(d_output: Tensor, d_state: Any, saved: Tensor, *arguments: Any) -> Any:
        given, asked = plain(arguments), named(*arguments)
        in_bits = "state" in AS_GIVEN[named]
        d_after = None if d_state is None else bits(d_state) if in_bits else as_numpy(d_state)
        made = differentiate(bits(d_output), d_after, bits(saved), given, dtype_name(asked.x))
        found: list[Tensor | None] = []
        for each, gradient in zip(gradients, made, strict=True):
            x = getattr(asked, each)
            if x is None:
                found.append(None)
            elif each in AS_GIVEN[named]:
                found.append(to_torch(gradient, x.dtype))
            else:
                found.append(torch.from_numpy(gradient).to(x.dtype).contiguous())
        return tuple(found)

    operator = Operator(
        name=name,
        arguments=named,
        results=Results,
        followed=("output", "state"),
        saved=("saved",),
        gradients=gradients,
        run=run,
        shapes=fake,
        run_backward=run_backward,
        again=again,
        shared=shared,
    )
    tensors = operator.tensors
    return operator


def _convolved_shapes(given: Convolution) -> tuple[tuple[Any, Any], ...]:
    x = given.x
    after = (*x.shape[:-2], given.weight.shape[-1] - 1, x.shape[-1])
    return (x.shape, x.dtype), (after if given.wants_state else (0,), x.dtype), ((0,), x.dtype)


def _scanned_shapes(given: Scan) -> tuple[tuple[Any, Any], ...]:
    x, wide = given.x, computed_in(given.x)
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


CONVOLUTION = _operator(
    "short_convolution",
    Convolution,
    shared=("weight", "bias"),
    gradients=("x", "weight", "bias", "state"),
    compute=lambda given, dtype: (*core_calls.convolve(given, dtype), None),
    differentiate=lambda d_output, d_after, _, given, dtype: core_calls.convolve_backward(
        d_output, d_after, given, dtype
    ),
    again=_convolved_again,
    shapes=_convolved_shapes,
)
SELECTIVE_SCAN = _operator(
    "selective_scan",
    Scan,
    shared=("A", "D", "dt_bias"),
    gradients=ScanGradients._fields,
    compute=core_calls.scan,
    differentiate=core_calls.scan_backward,
    again=_scanned_again,
    shapes=_scanned_shapes,
)
CONVOLVE, SCAN = define(CONVOLUTION), define(SELECTIVE_SCAN)
BY_NAME = {operator.name: operator for operator in (CONVOLUTION, SELECTIVE_SCAN)}


def _in_arithmetic(operator: Operator, data: Any) -> Any:
    """The arrays of a call with those that all rows share in the type of arithmetic."""
    wide = computed_in(data.x)
    cast = {
        name: x.to(wide)
        for name in operator.shared
        if (x := getattr(data, name)) is not None and x.dtype is not wide
    }
    return data._replace(**cast) if cast else data


def _overwritten(state: Tensor) -> None:
    """Let autograd notice what the core has written into a tensor, as it does for PyTorch's own."""
    if not state.is_inference():  # which nobody follows
        increment_version(state)


def repeat(rule: Any, data: Any) -> Tensor | None:
    output = torch.empty_like(data.x, memory_format=torch.contiguous_format)
    data = _in_arithmetic(BY_NAME[rule.operator], data)  # alive until the call is over
    key, addresses = layout(rule, (*data, output, data.state))
    found = recall(key)
    if found is None:
        return None
    found.run(addresses)
    _overwritten(data.state)
    return output


def _overwriting(rule: Any, data: Any, assemble: Callable[..., Any]) -> Tensor:
    """The output of a call that overwrites its state, and that is remembered for `repeat`."""
    operator = BY_NAME[rule.operator]
    output = torch.empty_like(data.x, memory_format=torch.contiguous_format)
    data = _in_arithmetic(operator, data)
    call = assemble(_arrays(operator.arguments, data), bits(output))
    call.forward()
    _overwritten(data.state)
    key, _ = layout(rule, (*data, output, data.state))
    if key is not None and data.mask is None and data.restart is None:
        names = (*data._fields, "output", "state_after")
        remember(key, Repeated(call, names, operator.name))
    return output


def convolution_step(
    x: Tensor, state: Tensor, weight: Tensor, bias: Tensor | None, silu: bool
) -> Tensor | None:
    wide = computed_in(x)
    if weight.dtype is not wide:
        weight = weight.to(wide)
    if bias is not None and bias.dtype is not wide:
        bias = bias.to(wide)
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    key, addresses = layout(("convolution_step", silu), (x, state, weight, bias, output, state))
    found = recall(key)
    if found is None:
        if key is None or x.ndim != 3 or weight.ndim != 2 or state.dtype != x.dtype:
            return None
        (batch, channels, _), taps = x.shape, weight.shape[1]
        fits = weight.shape[0] == channels and state.shape[:-1] == (batch, channels)
        fits = fits and is_overwritable(state)
        if not (fits and 0 < taps == state.shape[-1] + 1 and dtype_name(x) in CODES):
            return None
        if bias is not None and bias.shape != (channels,):
            return None
        tokens, before, made = (y.transpose(1, 2) for y in (x, state, output))
        arrays = _arrays(Convolution, (tokens, weight, bias, None, None, before))
        given = Convolution._make((*arrays, silu, True))
        call = core_calls.convolution_call(given, dtype_name(x), bits(made), given.state)
        names = ("x", "state", "weight", "bias", "output", "state_after")
        found = Repeated(call, names, CONVOLUTION.name)
        remember(key, found)
    found.run(addresses)
    _overwritten(state)
    return output


def scan_step(tokens: tuple[Tensor, ...], state: Tensor, softplus: bool) -> Tensor | None:
    x, dt, A, B, C, D, z, dt_bias = tokens
    wide = computed_in(x)
    if A.dtype is not wide:
        A = A.to(wide)
    if D is not None and D.dtype is not wide:
        D = D.to(wide)
    if dt_bias is not None and dt_bias.dtype is not wide:
        dt_bias = dt_bias.to(wide)
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    key, addresses = layout(
        ("scan_step", softplus), (x, dt, A, B, C, D, z, dt_bias, state, output, state)
    )
    found = recall(key)
    if found is None:
        if key is None or not _fits_a_scan(x, dt, A, B, C, D, z, dt_bias, state):
            return None
        x, dt, B, C, z, made = (None if y is None else y[:, None] for y in (x, dt, B, C, z, output))
        arrays = _arrays(Scan, (x, dt, A, B, C, D, z, dt_bias, None, None, state))
        given = Scan._make((*arrays, softplus, True, False))
        call = core_calls.scan_call(given, dtype_name(x), bits(made), given.state, None)
        fields = (name for name in ScanData._fields if name not in ("mask", "restart"))
        names = (*fields, "output", "state_after")
        found = Repeated(call, names, SELECTIVE_SCAN.name)
        remember(key, found)
    found.run(addresses)
    _overwritten(state)
    return output


def _fits_a_scan(
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    z: Tensor | None,
    dt_bias: Tensor | None,
    state: Tensor,
) -> bool:
    """Whether the tensors of a step have the shapes and types that the core takes for granted."""
    if x.ndim != 2 or A.ndim != 2 or A.shape[0] != x.shape[1] or A.shape[1] == 0:
        return False
    (batch, channels), states = x.shape, A.shape[1]
    shapes = ((dt, x.shape), (z, x.shape), (B, (batch, states)), (C, (batch, states)))
    return (
        dtype_name(x) in CODES
        and all(y is None or (y.shape == shape and y.dtype == x.dtype) for y, shape in shapes)
        and all(y is None or y.shape == (channels,) for y in (D, dt_bias))
        and state.shape == (batch, channels, states)
        and state.dtype == computed_in(x)
        and is_overwritable(state)
    )


def torch_convolution(rule: ConvolutionRule, data: ConvolutionData) -> ConvolutionResult:
    x, state = data.x, data.state
    asked = recorded(*data)
    eager = not asked and not traced(x)
    if rule.inplace and eager and state is not None and state.dtype == x.dtype:

        def assemble(arrays: Any, output: Any) -> Any:
            given = Convolution._make((*arrays, rule.silu, True))
            return core_calls.convolution_call(given, dtype_name(x), output, given.state)

        return ConvolutionResult(_overwriting(rule, data, assemble), state)
    if state is not None:
        data = data._replace(state=state.to(x.dtype))
    made = apply(CONVOLVE, Convolution(*data, rule.silu, rule.wants_state), asked)
    return ConvolutionResult(made[0], made[1] if rule.wants_state else None)


def torch_scan(rule: ScanRule, data: ScanData) -> ScanResult:
    x, state = data.x, data.state
    asked = recorded(*data)
    eager = not asked and not traced(x)
    if rule.inplace and eager and state is not None and state.dtype == computed_in(x):

        def assemble(arrays: Any, output: Any) -> Any:
            given = Scan._make((*arrays, rule.softplus, True, False))
            return core_calls.scan_call(given, dtype_name(x), output, given.state, None)

        return ScanResult(_overwriting(rule, data, assemble), state)
    gradient = asked or (torch.is_grad_enabled() and traced(x))
    made = apply(SCAN, Scan(*data, rule.softplus, rule.wants_state, gradient), asked)
    return ScanResult(made[0], made[1] if rule.wants_state else None)
