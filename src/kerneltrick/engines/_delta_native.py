"""The delta rule by the compiled core (`native/delta.cpp`): for arrays on the CPU.

This file turns a call into addresses and strides. `_delta_native_torch` and `_delta_native_jax`
make operators of PyTorch's and JAX's of it.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import numpy as np

from kerneltrick._arrays import Array, dtype_name, library, whole
from kerneltrick.engines._core_call import (
    CoreCall,
    NumpyArray,
    aligned,
    check_isa,
    core,
)
from kerneltrick.engines._delta_problem import (
    DeltaData,
    DeltaResult,
    DeltaRule,
    delta_rule_of,
    empty_state,
)
from kerneltrick.engines._native import type_number

KEPT = 256  # tokens between two states that the forward pass keeps for the gradient


class DeltaArguments(NamedTuple):
    """All that a call of the core depends on, as NumPy's arrays or as tensors."""

    q: Array
    k: Array
    v: Array
    beta: Array | None
    log_decay: Array | None
    erase: Array | None
    read: Array | None
    mask: Array | None
    restart: Array | None
    state: Array | None  # NaN in spoiled columns; None: nobody has one or asks for it
    rule: str  # `DeltaRule.text`
    start: Any  # absolute position of the first token
    gradient: bool  # whether a gradient may be asked for


class DeltaMade(NamedTuple):
    """What the core has computed; PyTorch's operator has empty arrays in place of None."""

    output: Array
    state: Array | None
    # The ⌈n/256⌉ states (d, M) that are kept for the gradient, (..., H, ⌈n/256⌉·d·M): as an axis of
    # their own, of length 1 for a short text, PyTorch would compile one program for short texts.
    states: Array | None


class DeltaGradients(NamedTuple):
    """Gradients of the arguments of those names."""

    q: Array
    k: Array
    v: Array
    beta: Array | None
    log_decay: Array | None
    erase: Array | None
    read: Array | None
    state: Array | None


def kept_states(n: Any) -> Any:
    """How many states the forward pass keeps: those before tokens 0, 256, 512, …"""
    return (n + KEPT - 1) // KEPT


def delta_native(rule: DeltaRule, data: DeltaData) -> DeltaResult:
    """All the work in one call of the core; the memory it takes does not grow with n."""
    check_isa()
    if library(data.q) == "torch":
        from kerneltrick.engines import _delta_native_torch

        return _delta_native_torch.run(rule, data)
    if library(data.q) == "jax":
        from kerneltrick.engines import _delta_native_jax

        return _delta_native_jax.jax_delta_rule(rule, data)
    given = delta_arguments(rule, data)
    made = compute(given, assemble(given, type_number(dtype_name(data.q))))
    return DeltaResult(made.output, made.state if rule.wants_state else None)


def delta_arguments(rule: DeltaRule, data: DeltaData) -> DeltaArguments:
    """The arguments of a call."""
    state = data.state
    if state is None and rule.wants_state:
        state = empty_state(data.k, data.v)
    numbers = (rule.text, whole(data.start), False)
    return DeltaArguments._make((*data.streams, state, *numbers))


@functools.lru_cache(maxsize=256)
def _outline(
    text: str, kind: int, q: tuple[int, ...], v: tuple[int, ...], decay_width: int
) -> CoreCall:
    """A call without its arrays, for q and v of these shapes."""
    rule = delta_rule_of(text)
    return CoreCall(
        operator="delta_rule",
        type=kind,
        output_type=kind,
        rows=math.prod(v[:-2]),
        groups=v[-3] // q[-3],
        tokens=v[-2],
        inputs=q[-1],
        width=v[-1],
        scale=rule.scale,
        normalize=rule.normalize_qk,
        decay_width=decay_width,
    )


def assemble(given: DeltaArguments, kind: int) -> CoreCall:
    """What forward and backward are both given: sizes, and the arrays that are read."""
    q, v, decay = given.q, given.v, given.log_decay
    width = 0 if decay is None else decay.shape[-1]
    call = CoreCall(_outline(given.rule, kind, q.shape, v.shape, width), start=given.start)
    for names, where in (
        (("q", "k", "erase", "read"), q.shape[:-2]),
        (("v", "beta", "log_decay", "mask", "restart"), v.shape[:-2]),
    ):
        for name in names:
            x = getattr(given, name)
            if x is not None:
                call.view(name, x, where)
    return call


def compute(given: DeltaArguments, call: CoreCall) -> DeltaMade:
    """The forward pass on NumPy arrays."""
    made = give_results(given, call)
    call.forward()
    return made


def give_results(given: DeltaArguments, call: CoreCall) -> DeltaMade:
    """The arrays that the forward pass writes, which the call is given."""
    v = given.v
    output = aligned(v.shape, v.dtype)
    call.view("output", output, v.shape[:-2])
    state = states = None
    if given.state is not None:
        state = call.array("state", np.array(given.state, order="C"))
    if given.gradient:
        size = kept_states(v.shape[-2]) * given.q.shape[-1] * v.shape[-1]
        states = call.array("states", aligned((*v.shape[:-2], size), _compute(call)))
    return DeltaMade(output, state, states)


def differentiate(
    given: DeltaArguments,
    call: CoreCall,
    d_output: NumpyArray,
    d_state: NumpyArray | None,
    states: NumpyArray | None,
) -> DeltaGradients:
    """The backward pass on NumPy arrays; rows of d_q, d_k, d_erase and d_read are value heads."""
    made = give_gradients(given, call, d_output, d_state, states)
    call.backward()
    return made


def give_gradients(
    given: DeltaArguments,
    call: CoreCall,
    d_output: NumpyArray,
    d_state: NumpyArray | None,
    states: NumpyArray | None,
) -> DeltaGradients:
    """The arrays that the backward pass reads and writes, which the call is given."""
    q, v, wide = given.q, given.v, _compute(call)
    lead, n, d = v.shape[:-2], v.shape[-2], q.shape[-1]
    call.view("d_output", d_output, lead)
    call.array("state", given.state)
    call.array("states", states)
    made: dict[str, NumpyArray | None] = dict.fromkeys(DeltaGradients._fields)
    sizes = {
        "q": (d, q.dtype),
        "k": (d, q.dtype),
        "v": (v.shape[-1], q.dtype),
        "beta": (1, wide),
        "log_decay": (call["decay_width"], wide),
        "erase": (d, q.dtype),
        "read": (d, q.dtype),
    }
    for name, (width, dtype) in sizes.items():
        if getattr(given, name) is not None:
            made[name] = x = aligned((*lead, n, width), dtype)
            call.view(f"d_{name}", x, lead)
    if given.state is not None:
        first = np.zeros(given.state.shape, wide) if d_state is None else np.array(d_state, wide)
        made["state"] = call.array("d_state", first)
    return DeltaGradients(**made)


def _compute(call: CoreCall) -> Any:
    return np.float64 if call["type"] == type_number("float64") else np.float32


class DeltaSteps:
    """The core's decoder of the delta rule, on a state (..., H, d, M) that it changes in place.

    `step` takes one token: q, k, v, beta, output, log_decay, erase and read, contiguous. It returns
    False, and changes nothing, if one of them is not, or if a log-decay is not finite or above 0.
    The state is changed by the last token only when the next one comes, so that a step passes over
    it once; `finish` does it at once.
    """

    def __init__(self, rule: DeltaRule, data: DeltaData, dtype: str, state: NumpyArray) -> None:
        check_isa()
        call = assemble(delta_arguments(rule, data), type_number(dtype))
        call.array("state", state)
        self.call, self.core = call, core().DeltaDecoder(call.packed())
        self.step, self.finish = self.core.step, self.core.finish


def delta_step(
    tokens: tuple[Array, ...], before: Array, normalize: bool, scale: float
) -> tuple[Array, Array] | None:
    """One token of CPU tensors (q, k, v, beta and log_decay), tokens before heads: the output, and
    the state (batch, H, d, M) after it. None where the core cannot do it: without a core, with
    gradients, or traced."""
    if core() is None:
        return None
    from kerneltrick.engines import _delta_native_torch

    return _delta_native_torch.step(tokens, before, normalize, scale)


def delta_decoder(
    rule: DeltaRule, data: DeltaData, dtype: str, state: NumpyArray
) -> DeltaSteps | None:
    """Steps by the core for tokens shaped like `data`; None where there is no core."""
    return None if core() is None or state.size == 0 else DeltaSteps(rule, data, dtype, state)
