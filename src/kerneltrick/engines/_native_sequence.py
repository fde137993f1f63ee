"""The short convolution and the selective scan by the compiled core, on NumPy arrays.

`Convolution` and `Scan` hold what a call of the core depends on. `convolve` and `scan` run one, and
`convolve_backward` and `scan_backward` its gradient. `_native_sequence_torch` makes operators of
PyTorch's of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from kerneltrick._arrays import Array, dtype_name, library
from kerneltrick.engines._convolution import ConvolutionData, ConvolutionResult, ConvolutionRule
from kerneltrick.engines._core_call import (
    CoreCall,
    NumpyArray,
    aligned,
    check_isa,
    core,
    missing_core,
)
from kerneltrick.engines._engine import Signature
from kerneltrick.engines._native import CODES, type_number
from kerneltrick.engines._scan import ScanData, ScanResult, ScanRule

KEEP = 32  # tokens from one state that is kept for the gradient to the next


class Convolution(NamedTuple):
    """The arguments of a convolution; x and state are in the type that the call declares."""

    x: Array
    weight: Array
    bias: Array | None
    mask: Array | None
    restart: Array | None
    state: Array | None
    silu: bool
    wants_state: bool


class Scan(NamedTuple):
    """The arguments of a scan; x, dt, B, C and z are in the type that the call declares."""

    x: Array
    dt: Array
    A: Array
    B: Array
    C: Array
    D: Array | None
    z: Array | None
    dt_bias: Array | None
    mask: Array | None
    restart: Array | None
    state: Array | None
    softplus: bool
    wants_state: bool
    gradient: bool  # whether states are kept for a gradient


# What the core reads in the type that the call declares; it gets all else as values of NumPy's.
AS_GIVEN = {
    Convolution: frozenset({"x", "state"}),
    Scan: frozenset({"x", "dt", "B", "C", "z"}),
}


def supports(signature: Signature) -> bool:
    """Whether the core runs a call, with every gradient that may be asked for."""
    libraries = ("numpy", "torch", *(("jax",) if signature.rule.operator == "delta_rule" else ()))
    if signature.library not in libraries or signature.dtype not in CODES:
        return False
    return core() is not None and signature.host not in ("foreign", "onnx")


def reason(signature: Signature) -> Exception:
    """Why the core cannot run a call."""
    if core() is None:
        return RuntimeError(f"there is no compiled core: {missing_core()}; or use another engine")
    return ValueError(
        "the native engine takes NumPy arrays and CPU tensors of float16, bfloat16, float32 or "
        "float64, and for the delta rule JAX arrays on the CPU, not "
        f"{signature.library} arrays of {signature.dtype}, nor tensors with tangents or on another "
        'device. Use engine="auto"'
    )


def _call(operator: str, x: NumpyArray, dtype: str, numbers: dict[str, Any]) -> CoreCall:
    check_isa()
    rows, (tokens, channels) = math.prod(x.shape[:-2]), x.shape[-2:]
    numbers = {**numbers, "rows": rows, "tokens": tokens, "channels": channels}
    return CoreCall(operator=operator, type=type_number(dtype), **numbers)


def _wide(dtype: str) -> Any:
    return np.float64 if dtype == "float64" else np.float32


def _parameter(call: CoreCall, name: str, x: NumpyArray | None, dtype: str) -> None:
    """Give numbers (n, w) or (w,) that all rows share, in the type of arithmetic."""
    if x is not None:
        x = x.astype(_wide(dtype), copy=False)
        call.view(name, x if x.ndim == 2 else x[None], ())


def _tokens(call: CoreCall, given: Convolution | Scan) -> None:
    lead = given.x.shape[:-2]
    for name in ("mask", "restart"):
        if getattr(given, name) is not None:
            call.view(name, getattr(given, name), lead)


def _assemble_convolution(given: Convolution, dtype: str) -> CoreCall:
    x, lead = given.x, given.x.shape[:-2]
    numbers = {"taps": given.weight.shape[-1], "silu": given.silu}
    call = _call("short_convolution", x, dtype, numbers)
    call.view("x", x, lead)
    _parameter(call, "weight", given.weight.T, dtype)
    _parameter(call, "bias", given.bias, dtype)
    _tokens(call, given)
    if given.state is not None:
        call.view("state", given.state, lead)
    return call


def convolve(
    given: Convolution, dtype: str, after: NumpyArray | None = None
) -> tuple[NumpyArray, NumpyArray | None]:
    """The output and the state after x, which is written into `after` if that is given."""
    x, lead = given.x, given.x.shape[:-2]
    output = aligned(x.shape, x.dtype)
    if after is None and given.wants_state:
        after = np.empty((*lead, given.weight.shape[-1] - 1, x.shape[-1]), x.dtype)
    convolution_call(given, dtype, output, after).forward()
    return output, after


def convolution_call(
    given: Convolution, dtype: str, output: NumpyArray, after: NumpyArray | None
) -> CoreCall:
    """The forward pass, which writes into `output` and `after`."""
    call = _assemble_convolution(given, dtype)
    call.view("output", output, given.x.shape[:-2])
    if after is not None:
        call.view("state_after", after, given.x.shape[:-2])
    return call


def convolve_backward(
    d_output: NumpyArray, d_after: NumpyArray | None, given: Convolution, dtype: str
) -> tuple[NumpyArray, NumpyArray, NumpyArray, NumpyArray | None]:
    """The gradients of x, weight (channels, taps), bias and state."""
    x, lead = given.x, given.x.shape[:-2]
    channels, taps = given.weight.shape
    call = _assemble_convolution(given, dtype)
    call.view("d_output", d_output, lead)
    d_x = aligned(x.shape, x.dtype)
    call.view("d_x", d_x, lead)
    if d_after is not None:
        call.view("d_state_after", d_after, lead)
    d_state = None
    if given.state is not None:
        d_state = np.empty((*lead, taps - 1, channels), x.dtype)
        call.view("d_state", d_state, lead)
    d_weight, d_bias = np.empty((taps, channels)), np.empty(channels)
    call.array("d_weight", d_weight)
    call.array("d_bias", d_bias)
    call.backward()
    return d_x, d_weight.T, d_bias, d_state


def _assemble_scan(given: Scan, dtype: str, kept: NumpyArray | None) -> CoreCall:
    x, lead = given.x, given.x.shape[:-2]
    numbers = {"states": given.A.shape[-1], "softplus": given.softplus, "keep": KEEP}
    call = _call("selective_scan", x, dtype, numbers)
    for name in ("x", "dt", "B", "C", "z"):
        if getattr(given, name) is not None:
            call.view(name, getattr(given, name), lead)
    for name in ("A", "D", "dt_bias"):
        _parameter(call, name, getattr(given, name), dtype)
    _tokens(call, given)
    if given.state is not None:
        call.view("state", given.state.astype(_wide(dtype), copy=False), lead)
    if kept is not None:
        call.array("kept", kept)
    return call


def kept_shape(x: Any, states: Any) -> tuple[Any, ...]:
    """The shape of the states that are kept for the gradient, which only the core looks into.

    One axis, since compiled code would ask whether an axis of tiles has the length 1.
    """
    return (math.prod(x.shape[:-2]) * ((x.shape[-2] + KEEP - 1) // KEEP) * states * x.shape[-1],)


def scan(
    given: Scan, dtype: str, after: NumpyArray | None = None
) -> tuple[NumpyArray, NumpyArray | None, NumpyArray | None]:
    """The output, the state after x, which is written into `after` if that is given, and the states
    that the gradient needs."""
    x, lead = given.x, given.x.shape[:-2]
    kept = aligned(kept_shape(x, given.A.shape[-1]), _wide(dtype)) if given.gradient else None
    output = aligned(x.shape, x.dtype)
    if after is None and given.wants_state:
        after = np.empty((*lead, *given.A.shape), _wide(dtype))
    scan_call(given, dtype, output, after, kept).forward()
    return output, after, kept


def scan_call(
    given: Scan,
    dtype: str,
    output: NumpyArray,
    after: NumpyArray | None,
    kept: NumpyArray | None,
) -> CoreCall:
    """The forward pass, which writes into `output`, `after` and `kept`."""
    call = _assemble_scan(given, dtype, kept)
    call.view("output", output, given.x.shape[:-2])
    if after is not None:
        call.view("state_after", after, given.x.shape[:-2])
    return call


class ScanGradients(NamedTuple):
    """Of the arguments of those names; None where there is none."""

    x: Array
    dt: Array
    A: Array
    B: Array
    C: Array
    D: Array | None
    z: Array | None
    dt_bias: Array | None
    state: Array | None


def scan_backward(
    d_output: NumpyArray, d_after: NumpyArray | None, kept: NumpyArray, given: Scan, dtype: str
) -> ScanGradients:
    lead = given.x.shape[:-2]
    call = _assemble_scan(given, dtype, kept)
    call.view("d_output", d_output, lead)
    if d_after is not None:
        call.view("d_state_after", d_after.astype(_wide(dtype), copy=False), lead)
    made: dict[str, NumpyArray | None] = dict.fromkeys(ScanGradients._fields)
    for name in ("x", "dt", "B", "C", "z"):
        x = getattr(given, name)
        if x is not None:
            made[name] = y = aligned(x.shape, x.dtype)
            call.view(f"d_{name}", y, lead)
    for name in ("A", "D", "dt_bias"):
        x = getattr(given, name)
        if x is not None:
            made[name] = call.array(f"d_{name}", np.empty(x.shape))
    if given.state is not None:
        made["state"] = y = np.empty((*lead, *given.A.shape), _wide(dtype))
        call.view("d_state", y, lead)
    call.backward()
    return ScanGradients(**made)


def repeat(rule: Any, data: Any) -> Array | None:
    """The output of a call that overwrites its state and has come before with arrays of the same
    layout, which are not checked again. None if it has not, or if this is another kind of call."""
    if library(data.x) != "torch":
        return None
    from kerneltrick.engines import _native_sequence_torch

    return _native_sequence_torch.repeat(rule, data)


def convolution_step(
    x: Array, state: Array, weight: Array, bias: Array | None, silu: bool
) -> Array | None:
    """The output for the next tokens of CPU tensors, channels before tokens: x (batch, channels, n)
    and state (batch, channels, taps − 1), which is overwritten. None where the core cannot do it:
    without a core, with gradients, or traced."""
    if core() is None:
        return None
    from kerneltrick.engines import _native_sequence_torch

    return _native_sequence_torch.convolution_step(x, state, weight, bias, silu)


def scan_step(tokens: tuple[Array | None, ...], state: Array, softplus: bool) -> Array | None:
    """The output for one token of CPU tensors: x, dt (batch, channels), A (channels, N), B, C
    (batch, N), D, z and dt_bias; state (batch, channels, N) is overwritten. None where the core
    cannot do it."""
    if core() is None:
        return None
    from kerneltrick.engines import _native_sequence_torch

    return _native_sequence_torch.scan_step(tokens, state, softplus)


def native_convolution(rule: ConvolutionRule, data: ConvolutionData) -> ConvolutionResult:
    """All the work in one call of the core."""
    x, state = data.x, data.state
    if library(x) == "torch":
        from kerneltrick.engines import _native_sequence_torch

        return _native_sequence_torch.torch_convolution(rule, data)
    after = state if rule.inplace and state is not None and state.dtype == x.dtype else None
    if state is not None:
        data = data._replace(state=state.astype(x.dtype, copy=False))
    given = Convolution(*data, rule.silu, rule.wants_state)
    return ConvolutionResult(*convolve(given, dtype_name(x), after))


def native_scan(rule: ScanRule, data: ScanData) -> ScanResult:
    """All the work in one call of the core."""
    if library(data.x) == "torch":
        from kerneltrick.engines import _native_sequence_torch

        return _native_sequence_torch.torch_scan(rule, data)
    dtype, state = dtype_name(data.x), data.state
    after = state if rule.inplace and state is not None and state.dtype == _wide(dtype) else None
    given = Scan(*data, rule.softplus, rule.wants_state, False)
    return ScanResult(*scan(given, dtype, after)[:2])
