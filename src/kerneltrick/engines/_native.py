"""Linear attention by the compiled core (`native/`): fused, threaded, for arrays on the CPU.

This file turns a call into addresses and strides and keeps the arrays alive while the core runs.
`_native_torch` makes operators of PyTorch's of it; maps that the core does not know are computed by
`_stretches`, and handed over as features.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
import warnings
from typing import Any, NamedTuple

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import (
    Array,
    Wide,
    as_numpy,
    astype,
    dtype_name,
    is_concrete,
    library,
    space,
    whole,
)
from kerneltrick.engines._problem import Carry, Data, Near, Plan, Result, block_positions

NumpyArray = np.ndarray[Any, Any]
Call = dict[str, Any]
Scales = tuple[Any, Any]  # log-scales (..., n, 1) of given queries and keys, or None

TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
LINE = 64  # bytes of a cache line
NO_TOKEN = -(2**63)  # core.h
INTERFACE = 0xD596F10F  # core.h: a core that has another means other things by its fields

NAMES = (
    "given", "elu", "relu", "relu2", "exp", "square", "cosformer", "hedgehog_softmax",
    "hedgehog_exp", "hedgehog_separate", "t2r", "favor_positive", "favor_hyperbolic", "favor_trig",
    "quadratic",
)  # fmt: skip
KIND = {name: number for number, name in enumerate(NAMES)}  # core.h, enum Map


class Fused(NamedTuple):
    """A map that the core computes: its text, and the weights that the text does not hold."""

    text: str
    weight: Array | None = None  # (d, p) or (heads, d, p)
    bias: Array | None = None  # (p,) or (heads, 1, p)
    key_weight: Array | None = None  # of keys, where they have their own


class Arguments(NamedTuple):
    """All that a call of the core depends on, as NumPy's arrays or as tensors."""

    q: Array
    k: Array
    v: Array
    mask: Array | None
    query_mask: Array | None
    log_decay: Array | None
    restart: Array | None
    q_positions: Array | None
    k_positions: Array | None
    q_scale: Array | None  # (..., n, 1): log-scales of queries and keys that are given as features
    k_scale: Array | None
    sums: Array
    log_scale: Array | None
    bad: Array | None
    weight: Array | None
    bias: Array | None
    key_weight: Array | None
    near_k: Array | None
    near_v: Array | None
    near_positions: Array | None
    near_keep: Array | None
    near_count: Array | None
    gain: Array | None
    feature_map: str
    scale: float
    causal: bool
    normalize: bool
    zero_fill: float
    chunk_size: int
    start: Any
    window: int
    sinks: int
    near_scale: float
    relative: bool
    wants_state: bool
    gradient: bool  # whether a gradient may be asked for

    @property
    def all_far(self) -> bool:
        return not (self.window or self.sinks)


class Made(NamedTuple):
    """What the core has computed; PyTorch's operator has empty arrays in place of None."""

    output: Array
    zero: Array | None
    sums: Array
    log_scale: Array | None
    bad: Array
    saved: Array | None  # (1, ...): what rows are divided by; beside a window (3, ...), see core.h
    near_after: Array | None  # which tokens are near afterwards, and how many were seen: for `kept`
    seen_after: Array | None


@functools.cache
def core() -> Any:
    """The compiled module, loaded when first needed; None where there is none for this version."""
    return _loaded()[0]


def missing_core() -> str:
    """Why there is no core, and what to do."""
    return _loaded()[1]


@functools.cache
def _loaded() -> tuple[Any, str]:
    try:
        module = importlib.import_module("kerneltrick._core")
    except ModuleNotFoundError:
        return None, "no compiler worked at installation"
    except ImportError as error:
        return None, f"it cannot be loaded: {error}"
    found = getattr(module, "INTERFACE", None)
    if found == INTERFACE:
        return module, ""
    was = "none" if found is None else f"{found:#010x}"
    reason = (
        f"{module.__file__} was compiled from other sources: its interface is {was}, and this "
        f"version of kerneltrick needs {INTERFACE:#010x}; compile it again (`make native`, or "
        f"install kerneltrick again)"
    )
    warnings.warn(f"the compiled core is not used: {reason}", RuntimeWarning, stacklevel=2)
    return None, reason


def supports(plan: Plan, data: Data) -> Fused | None:
    """How the core would run this call; None if it cannot."""
    if library(data.q) not in ("numpy", "torch") or dtype_name(data.q) not in TYPES:
        return None
    if core() is None:
        return None
    how = _fused(plan, data)
    if not (how.text or plan.all_far):
        return None
    if library(data.q) == "torch":
        from kerneltrick.engines import _native_torch

        return _native_torch.supports(plan, data, how)
    return how if all(x is None or is_concrete(x) for x in how[1:]) else None


def native(plan: Plan, data: Data, how: Fused | None = None) -> Result:
    """All the work in one call of the core; the memory it takes does not grow with n."""
    if core() is None:
        raise RuntimeError(f"there is no compiled core: {missing_core()}; or use another engine")
    how = supports(plan, data) if how is None else how
    if how is None:
        raise ValueError(
            "the native engine cannot run this call: it takes NumPy arrays and CPU tensors of "
            "float16, bfloat16, float32 or float64, and gives gradients for maps without log-scale "
            "and those it has fused; "
            f"here are {library(data.q)} {data.q.dtype} and {plan.feature_map}. Use "
            'engine="auto"'
        )
    check_isa()
    if how.text:
        return run(plan, data, how)
    from kerneltrick.engines._stretches import by_stretches

    return by_stretches(plan, data, at_once=how is AT_ONCE)


def run(plan: Plan, data: Data, how: Fused, scales: Scales = (None, None)) -> Result:
    if library(data.q) == "torch":
        from kerneltrick.engines import _native_torch

        return _native_torch.attend(plan, data, how, scales)
    return attend(plan, data, how, scales)


def check_isa() -> None:
    asked = os.environ.get("KERNELTRICK_ISA")
    if asked and asked not in core().isas():
        raise ValueError(
            f"KERNELTRICK_ISA is {asked!r}; this machine and build have {', '.join(core().isas())}"
        )


BY_STRETCHES = Fused("")  # features of a map that the core does not know, never whole
AT_ONCE = Fused("")  # the same for all tokens, as gradients need them
_PLAIN = {
    kind: Fused(kind.name)
    for kind in (
        maps.Identity, maps.Elu, maps.Relu, maps.Relu2, maps.Exp, maps.Square, maps.Softmax,
    )
}  # fmt: skip


def fused(feature_map: maps.FeatureMap) -> Fused:
    """How the core computes a map, without text if it does not: subclasses may do anything."""
    kind = type(feature_map)
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in (maps.Cosformer, maps.Favor):
        return Fused(str(feature_map))
    if isinstance(feature_map, maps.Poly) and kind is maps.Poly and feature_map.degree == 2:
        return Fused(str(feature_map))
    if isinstance(feature_map, maps.Taylor) and kind is maps.Taylor and feature_map.order == 2:
        return Fused(str(feature_map))
    if isinstance(feature_map, maps.Hedgehog) and kind is maps.Hedgehog:
        apart = str(feature_map.separate).lower()
        text = f"hedgehog:activation={feature_map.activation},separate={apart}"
        return Fused(text, feature_map.weight, None, feature_map.key_weight)
    if isinstance(feature_map, maps.T2R) and kind is maps.T2R:
        text = f"t2r:features={feature_map.features},seed={feature_map.seed}"
        return Fused(text, feature_map.weight, feature_map.bias)
    return BY_STRETCHES


def _fused(plan: Plan, data: Data) -> Fused:
    """As `fused`, for this call: a decay per feature leaves no closed form within a block."""
    by_feature = data.log_decay is not None and data.log_decay.shape[-1] > 1
    if by_feature and isinstance(plan.feature_map, (maps.Poly, maps.Taylor)):
        return BY_STRETCHES
    return fused(plan.feature_map)


@functools.lru_cache(maxsize=256)
def recipe(text: str, d: int, width: int) -> tuple[Call, NumpyArray | None]:
    """What describes a map to the core, and the weights that its text stands for.

    `width` is that of the weights given, 0 if there are none.
    """
    chosen, kind = maps.get(text), "given"
    m, columns, weight, more = chosen.dim(d), 0, None, {}
    if isinstance(chosen, maps.Favor):
        kind, columns, weight = f"favor_{chosen.kind}", chosen.draws, chosen.projection(d).T
    elif isinstance(chosen, maps.Hedgehog):
        apart = chosen.separate and chosen.activation == "softmax"
        kind, columns = f"hedgehog_{'separate' if apart else chosen.activation}", width or d
        m = 2 * columns
    elif isinstance(chosen, maps.T2R):
        kind, weight = "t2r", None if width else chosen.weights(d)
    elif isinstance(chosen, maps.Cosformer):
        kind, more = "cosformer", {"horizon": float(chosen.horizon)}
    elif isinstance(chosen, maps.Poly):
        c = chosen.constant
        kind, more = "quadratic", {"c0": c * c, "c1": 2 * c, "c2": 1.0}
    elif isinstance(chosen, maps.Taylor):
        kind, more = "quadratic", {"c0": 1.0, "c1": 1.0, "c2": 0.5}
    elif chosen.name in KIND:
        kind = chosen.name
    return {"map": KIND[kind], "inputs": d, "count": m, "columns": columns or m, **more}, weight


def arrays_of(data: Data) -> list[Array]:
    found = [x for x in (*data[:9], data.gain) if x is not None]
    for part in data.carry:
        found += [x for x in (part if isinstance(part, tuple) else (part,)) if x is not None]
    return found


class Buffers:
    """The dict a call of the core is, and the arrays that its addresses point into."""

    def __init__(self, **numbers: Any) -> None:
        self.call: Call = numbers
        self.alive: list[Any] = []

    def view(self, name: str, x: NumpyArray | None, lead: tuple[int, ...]) -> None:
        """x (..., n, w), broadcast to the leading indices `lead`, whatever its strides."""
        if x is None:
            return
        if x.shape[:-2] != lead:
            x = np.broadcast_to(x, (*lead, *x.shape[-2:]))
        *strides, token, element = x.strides
        offsets, where = _offsets(lead, tuple(strides))
        self.alive += [x, offsets]
        self.call[name] = (_address(x), where, token, element)

    def array(self, name: str, x: NumpyArray | None) -> NumpyArray | None:
        """x as one contiguous piece of memory."""
        if x is not None:
            x = np.ascontiguousarray(x)
            self.alive.append(x)
            self.call[name] = _address(x)
        return x


@functools.lru_cache(maxsize=256)
def _offsets(lead: tuple[int, ...], strides: tuple[int, ...]) -> tuple[NumpyArray, int]:
    """Where each of the leading indices begins, in bytes, and the address of that."""
    found = np.zeros(lead, dtype=np.int64)
    for axis, (size, stride) in enumerate(zip(lead, strides, strict=True)):
        shape = [1] * len(lead)
        shape[axis] = size
        found += np.arange(size, dtype=np.int64).reshape(shape) * stride
    return found, _address(found)


def _address(x: NumpyArray) -> int:
    return int(core().address(x))


def arguments(
    plan: Plan, data: Data, how: Fused, scales: Scales = (None, None), gradient: bool = False
) -> Arguments:
    carry = data.carry
    near = (None,) * 5 if carry.near is None else carry.near
    tensors = (
        *data[:9], *scales, carry.sums.hi, carry.log_scale, carry.bad, *how[1:], *near, data.gain,
    )  # fmt: skip
    return Arguments._make(
        (
            *tensors, how.text, plan.scale, plan.causal, plan.normalize, plan.zero_fill,
            plan.chunk_size, whole(data.start), plan.window, plan.sinks, plan.near_scale,
            plan.relative, plan.wants_state, gradient,
        )
    )  # fmt: skip


def attend(plan: Plan, data: Data, how: Fused, scales: Scales = (None, None)) -> Result:
    """A call on NumPy arrays."""
    given, carry = arguments(plan, data, plain(how), scales), data.carry
    buffers = assemble(given, TYPES[dtype_name(data.q)])
    total, width = carry.log_decay, buffers.call["decay_width"]
    if width:
        added = buffers.array("decay_total", np.zeros((*data.k.shape[:-2], 1, width)))
    made = compute(given, buffers)
    if total is not None and width:
        total = Wide(total.hi + added, None)
    near = None
    if made.near_after is not None:
        near = kept(data, made.near_after, made.seen_after)
    bad = made.bad if plan.wants_state and made.bad.any() else None
    after = Carry(Wide(made.sums, None), made.log_scale, total, bad, near)
    return Result(made.output, made.zero, after)


def plain(how: Fused) -> Fused:
    """A map whose weights are NumPy's, whatever library they come from."""
    if how.weight is None and how.bias is None:
        return how
    return Fused(how.text, *(None if x is None else as_numpy(x) for x in how[1:]))


def compute(given: Arguments, buffers: Buffers) -> Made:
    """The forward pass on NumPy arrays; outputs in the type of sums if a gradient may follow."""
    q, k, v, call = given.q, given.k, given.v, buffers.call
    kind = call["type"]
    dtype = q.dtype
    if given.gradient:
        dtype, kind = (np.float64, 1) if kind == TYPES["float64"] else (np.float32, 0)
    call["output_type"] = kind
    output = aligned((*q.shape[:-1], v.shape[-1]), dtype)
    buffers.view("output", output, q.shape[:-2])
    zero = None
    if given.normalize:
        zero = buffers.array("zero", np.zeros((*q.shape[:-1], 1), dtype=bool))
    saved = None
    if given.gradient:
        saved = np.zeros((1 if given.all_far else 3, *q.shape[:-1]))
        give_saved(buffers, given, saved)
    sums = buffers.array("sums", given.sums.astype(np.float64))
    log_scale = given.log_scale
    if log_scale is not None:
        log_scale = buffers.array("log_scale", log_scale.astype(np.float64))
    bad = np.zeros((*k.shape[:-2], 1, v.shape[-1] + 1), dtype=bool)
    if given.bad is not None:
        bad |= given.bad
    buffers.array("bad", bad)
    index = count = None
    if given.near_k is not None and given.wants_state:
        slots = slots_after(given, min)
        index = np.empty((*k.shape[:-2], slots, 1), np.int64)
        count = np.empty((*k.shape[:-2], 1, 1), np.int64)
        call["near_slots_after"] = slots
        buffers.array("near_after", index)
        buffers.array("seen_after", count)
    core().forward(call)
    return Made(output, zero, sums, log_scale, bad, saved, index, count)


def give_saved(buffers: Buffers, given: Arguments, saved: NumpyArray) -> None:
    """Where the core writes, and finds again, what the gradient needs of each row."""
    names = ("near_reference", "near_normalizer", "near_top")
    for name, x in zip(("normalizer",) if given.all_far else names, saved, strict=True):
        buffers.array(name, x)


def slots_after(given: Arguments, smaller: Any) -> Any:
    """How many tokens are kept after a call; `smaller` is min, or PyTorch's for unknown sizes."""
    assert given.near_k is not None
    have = given.near_k.shape[-2] - given.sinks
    return given.sinks + smaller(max(given.window - 1, 0), have + given.k.shape[-2])


def kept(data: Data, index: Array, count: Array) -> Near:
    """The tokens at index (..., slots, 1): of those kept before (−1 − slot), or of the call."""
    before = data.carry.near
    assert before is not None
    xp = space(data.k)
    keep = index != NO_TOKEN
    own, old = (xp.where(keep & (x >= 0), x, xp.zeros_like(x)) for x in (index, -1 - index))

    def pick(kept_before: Array, given: Array) -> Array:
        chosen = along(given, own)
        if kept_before.shape[-2] == 0:
            return chosen
        return xp.where(index < 0, along(kept_before, old), astype(chosen, kept_before.dtype))

    where = block_positions(data.k_positions, data.start, 0, data.k.shape[-2], data.k)[..., None]
    where = xp.broadcast_to(where, (*data.k.shape[:-1], 1))
    if data.k_positions is None:
        where = astype(where, before.positions.dtype)
    return Near(
        pick(before.k, data.k), pick(before.v, data.v), pick(before.positions, where), keep,
        astype(count, before.count.dtype),
    )  # fmt: skip


def along(x: Array, index: Array) -> Array:
    """x (..., n, e) at index (..., l, 1)."""
    if library(x) == "torch":
        return x.gather(-2, index.expand(*index.shape[:-1], x.shape[-1]))
    return np.take_along_axis(x, index, -2)


def assemble(given: Arguments, kind: int, wide_weights: bool = False) -> Buffers:
    """What forward and backward are both given: sizes, the map, and the arrays that are read."""
    q, k, v, weight, own = given.q, given.k, given.v, given.weight, given.key_weight
    heads, d = k.shape[-3], q.shape[-1]
    compute = np.float64 if kind == TYPES["float64"] else np.float32
    width = 0
    if given.log_decay is not None:
        width = given.log_decay.shape[-1]
    elif given.restart is not None:
        width = 1
    columns = next((x.shape[-1] for x in (weight, own) if x is not None), 0)
    numbers, drawn = recipe(given.feature_map, d, columns)
    buffers = Buffers(
        **numbers,
        type=kind,
        rows=math.prod(k.shape[:-2]),
        heads=heads,
        groups=q.shape[-3] // heads,
        keys=k.shape[-2],
        queries=q.shape[-2],
        width=v.shape[-1],
        causal=given.causal,
        normalize=given.normalize,
        zero_fill=given.zero_fill,
        start=given.start,
        chunk=0 if given.chunk_size == 64 else given.chunk_size,
        root_scale=math.sqrt(given.scale),
        decay_width=width,
    )
    weight = drawn if weight is None else weight
    if own is not None:
        weight = np.eye(d) if weight is None else weight
    if weight is not None:
        dtype = np.float64 if wide_weights else compute
        weight = np.ascontiguousarray(weight, dtype=dtype)
        count = weight.shape[0] if weight.ndim == 3 else 1
        if given.bias is not None:
            bias = given.bias.astype(compute)
            bias = bias.reshape(-1, bias.shape[-1])
            count = max(count, len(bias))  # one weight for all heads, and a bias for each, or so
            buffers.array("bias", np.broadcast_to(bias, (count, bias.shape[-1])))
        weight = np.broadcast_to(weight, (count, *weight.shape[-2:]))
        if own is not None:  # behind those of queries
            own = own.reshape(-1, *own.shape[-2:]).astype(dtype)
            weight = np.concatenate([weight, own])
            buffers.call["key_weight_heads"] = len(own)
        buffers.array("weight", weight)
        buffers.call["weight_heads"] = count
    lead, lead_q = k.shape[:-2], q.shape[:-2]
    buffers.view("q", q, lead_q)
    buffers.view("k", k, lead)
    buffers.view("v", v, lead)
    buffers.view("mask", given.mask, lead)
    buffers.view("query_mask", given.query_mask, lead_q)
    buffers.view("restart", given.restart, lead)
    if given.log_decay is not None:
        buffers.view("log_decay", given.log_decay.astype(compute, copy=False), lead)
    for name, positions, where in (
        ("q_positions", given.q_positions, lead_q),
        ("k_positions", given.k_positions, lead),
    ):
        if positions is not None:
            buffers.view(name, positions.astype(np.float64, copy=False), where)
    buffers.view("q_scale", given.q_scale, lead_q)
    buffers.view("k_scale", given.k_scale, lead)
    if not given.all_far:
        _assemble_near(given, buffers)
    return buffers


def _assemble_near(given: Arguments, buffers: Buffers) -> None:
    near_k, near_positions, lead = given.near_k, given.near_positions, given.k.shape[:-2]
    buffers.call |= {
        "window": given.window,
        "sinks": given.sinks,
        "relative": given.relative,
        "near_scale": given.near_scale,
    }
    if given.gain is not None:
        buffers.array("gain", given.gain.astype(np.float64))
    if near_k is None or near_positions is None or given.near_count is None:
        return
    buffers.array("seen", given.near_count.astype(np.int64))
    if near_k.shape[-2]:
        buffers.call["near_slots"] = near_k.shape[-2]
        buffers.view("near_k", near_k, lead)
        buffers.view("near_v", given.near_v, lead)
        buffers.view("near_keep", given.near_keep, lead)
        buffers.view("near_positions", near_positions.astype(np.float64), lead)


def aligned(shape: tuple[int, ...], dtype: Any) -> NumpyArray:
    """An empty array that begins on a cache line, if large in memory that was in use before."""
    block = core().Block(math.prod(shape) * np.dtype(dtype).itemsize)
    made: NumpyArray = np.frombuffer(block, dtype=np.uint8).view(dtype).reshape(shape)
    return made


def in_lines(x: NumpyArray) -> NumpyArray:
    """A copy of x (..., w) each of whose rows begins on a cache line, where there is a core."""
    if core() is None or x.size == 0:
        return x.copy()
    line = LINE // x.dtype.itemsize
    rows = aligned((*x.shape[:-1], -(-x.shape[-1] // line) * line), x.dtype)
    rows[..., : x.shape[-1]] = x
    rows[..., x.shape[-1] :] = 0
    return rows[..., : x.shape[-1]]
