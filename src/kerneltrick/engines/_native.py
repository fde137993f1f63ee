"""Linear attention by the compiled core (`native/`): fused, threaded, for arrays on the CPU.

This file turns a call into addresses and strides and keeps the arrays alive while the core runs.
Maps that the core does not know are computed here, a stretch of tokens at a time, and handed over
as features.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
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
    is_array,
    is_concrete,
    library,
    space,
    wide,
    zeros,
)
from kerneltrick.engines._problem import (
    Carry,
    Data,
    Near,
    Plan,
    Result,
    block_positions,
    prepare_keys,
    prepare_queries,
)

NumpyArray = np.ndarray[Any, Any]
Call = dict[str, Any]
Scales = tuple[Any, Any]  # log-scales (..., n, 1) of given queries and keys, or None

TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 3}
STRETCH = 1 << 18  # numbers of features made at once for a map that is not fused
LINE = 64  # bytes of a cache line
NO_TOKEN = -(2**63)  # core.h
INTERFACE = 0xC9700FC2  # core.h: a core that has another means other things by its fields
BLOCKS = 192  # tokens: a multiple of every block length of the core, 48 and 64 (native/row.h)

NAMES = (
    "given", "elu", "relu", "relu2", "exp", "square", "cosformer", "hedgehog_softmax",
    "hedgehog_exp", "t2r", "favor_positive", "favor_hyperbolic", "favor_trig", "quadratic",
)  # fmt: skip
KIND = {name: number for number, name in enumerate(NAMES)}  # core.h, enum Map


class Fused(NamedTuple):
    """A map as the core computes it: the numbers that describe it, and its weights."""

    numbers: Call
    weight: Array | None = None  # (d, p) or (heads, d, p)
    bias: Array | None = None  # (p,) or (heads, 1, p)


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


def supports(plan: Plan, data: Data) -> bool:
    """Whether the core can run this call: values at hand on the CPU, in a type it knows."""
    weights = [x for x in vars(plan.feature_map).values() if is_array(x)]
    if not all(is_concrete(x) for x in (*arrays_of(data), *weights)):
        return False
    if library(data.q) not in ("numpy", "torch") or core() is None:
        return False
    if dtype_name(data.q) not in TYPES or not (plan.all_far or _runs_near(plan, data)):
        return False
    return library(data.q) != "torch" or _differentiable(plan, data)


def _runs_near(plan: Plan, data: Data) -> bool:
    """Whether the core has both ways of getting a weight here: exactly, and by the map."""
    return _fused(plan, data) is not None


def native(plan: Plan, data: Data) -> Result:
    """All the work in one call of the core; the memory it takes does not grow with n."""
    if core() is None:
        raise RuntimeError(f"there is no compiled core: {missing_core()}; or use another engine")
    if not supports(plan, data):
        raise ValueError(
            "the native engine cannot run this call: it takes NumPy arrays and CPU tensors (not "
            "traced) of float16, bfloat16, float32 or float64, and gives gradients for the maps it "
            f"has fused; here are {library(data.q)} {data.q.dtype} and {plan.feature_map}. Use "
            'engine="auto"'
        )
    check_isa()
    how = _fused(plan, data)
    return _by_stretches(plan, data) if how is None else run(plan, data, how)


def run(plan: Plan, data: Data, how: Fused, scales: Scales = (None, None)) -> Result:
    if library(data.q) == "torch":
        from kerneltrick.engines import _native_torch

        return _native_torch.attend(plan, data, how, scales)
    return attend(plan, data, how, scales=scales)


def check_isa() -> None:
    asked = os.environ.get("KERNELTRICK_ISA")
    if asked and asked not in core().isas():
        raise ValueError(
            f"KERNELTRICK_ISA is {asked!r}; this machine and build have {', '.join(core().isas())}"
        )


def _differentiable(plan: Plan, data: Data) -> bool:
    """Whether the core gives every gradient that PyTorch will ask this call for."""
    from kerneltrick.engines import _native_torch

    if _native_torch.forward_mode():
        return False
    if _fused(plan, data) is not None:
        return True
    return not (
        _native_torch.needs_gradient(plan, data) or _native_torch.learned(plan.feature_map, data.k)
    )


def arrays_of(data: Data) -> list[Array]:
    found = [x for x in (*data[:9], data.gain) if x is not None]
    for part in data.carry:
        found += [x for x in (part if isinstance(part, tuple) else (part,)) if x is not None]
    return found


def fused(feature_map: maps.FeatureMap, d: int) -> Fused | None:
    """How the core computes a map; None if it does not. Subclasses may do anything: not fused."""
    kind = type(feature_map)
    simple = {
        maps.Identity: "given", maps.Elu: "elu", maps.Relu: "relu", maps.Relu2: "relu2",
        maps.Exp: "exp", maps.Square: "square",
    }  # fmt: skip
    if kind in simple:
        return _numbers(simple[kind], d, d)
    if kind is maps.Softmax:
        return _numbers("given", d, 0)
    if isinstance(feature_map, maps.Cosformer) and kind is maps.Cosformer:
        return _numbers("cosformer", d, 2 * d, horizon=float(feature_map.horizon))
    if isinstance(feature_map, maps.Poly) and kind is maps.Poly and feature_map.degree == 2:
        c, m = feature_map.constant, feature_map.dim(d)
        return _numbers("quadratic", d, m, c0=c * c, c1=2 * c, c2=1.0)
    if isinstance(feature_map, maps.Taylor) and kind is maps.Taylor and feature_map.order == 2:
        return _numbers("quadratic", d, feature_map.dim(d), c0=1.0, c1=1.0, c2=0.5)
    if isinstance(feature_map, maps.Favor) and kind is maps.Favor:
        made = _numbers(f"favor_{feature_map.kind}", d, feature_map.features)
        made.numbers["columns"] = feature_map.draws
        return Fused(made.numbers, feature_map.projection(d).T)
    if isinstance(feature_map, maps.Hedgehog) and kind is maps.Hedgehog:
        if feature_map.key_weight is not None or feature_map.separate:
            return None
        made = _numbers(f"hedgehog_{feature_map.activation}", d, feature_map.dim(d))
        made.numbers["columns"] = feature_map.dim(d) // 2
        return Fused(made.numbers, feature_map.weight)
    if isinstance(feature_map, maps.T2R) and kind is maps.T2R:
        made = _numbers("t2r", d, feature_map.features)
        return Fused(made.numbers, feature_map.weights(d), feature_map.bias)
    return None


def _fused(plan: Plan, data: Data) -> Fused | None:
    """As `fused`, for this call: a decay per feature leaves no closed form within a block."""
    how = fused(plan.feature_map, data.q.shape[-1])
    by_feature = data.log_decay is not None and data.log_decay.shape[-1] > 1
    if how is not None and by_feature and how.numbers["map"] == KIND["quadratic"]:
        return None
    return how


def _numbers(kind: str, d: int, m: int, **more: float) -> Fused:
    return Fused({"map": KIND[kind], "inputs": d, "count": m, "columns": m, **more})


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
        offsets = _offsets(lead, x.strides[:-2])
        self.alive += [x, offsets]
        self.call[name] = (_address(x), _address(offsets), x.strides[-2], x.strides[-1])

    def array(self, name: str, x: NumpyArray | None) -> NumpyArray | None:
        """x as one contiguous piece of memory."""
        if x is not None:
            x = np.ascontiguousarray(x)
            self.alive.append(x)
            self.call[name] = _address(x)
        return x


@functools.lru_cache(maxsize=256)
def _offsets(lead: tuple[int, ...], strides: tuple[int, ...]) -> NumpyArray:
    """Where each of the leading indices begins, in bytes."""
    found = np.zeros(lead, dtype=np.int64)
    for axis, (size, stride) in enumerate(zip(lead, strides, strict=True)):
        shape = [1] * len(lead)
        shape[axis] = size
        found += np.arange(size, dtype=np.int64).reshape(shape) * stride
    return found


def _address(x: NumpyArray) -> int:
    return int(core().address(x))


def attend(
    plan: Plan, data: Data, how: Fused, kind: int | None = None, scales: Scales = (None, None)
) -> Result:
    """A call on NumPy arrays; `kind` says what their numbers are where NumPy cannot (bfloat16)."""
    made, after = compute(plan, data, how, kind, scales)
    if after is None:
        return made
    return made._replace(carry=made.carry._replace(near=kept(data, *after)))


def compute(
    plan: Plan,
    data: Data,
    how: Fused,
    kind: int | None = None,
    scales: Scales = (None, None),
    normalizer: NumpyArray | None = None,
    near_saved: NumpyArray | None = None,
    output: NumpyArray | None = None,
) -> tuple[Result, tuple[NumpyArray, NumpyArray] | None]:
    """As `attend`, but of the tokens that are near afterwards only which (the arguments of `kept`).

    `normalizer` and `near_saved` (3, ...) are filled with what the gradient needs.
    """
    buffers = assemble(plan, data, how, kind, scales)
    q, v = data.q, data.v
    if output is None:
        output = aligned((*q.shape[:-1], v.shape[-1]), q.dtype)
    buffers.call["output_type"] = kind_of(output, buffers.call["type"])
    buffers.view("output", output, q.shape[:-2])
    zero = np.zeros((*q.shape[:-1], 1), dtype=bool) if plan.normalize else None
    buffers.array("zero", zero)
    buffers.array("normalizer", normalizer)
    if near_saved is not None and not plan.all_far:
        give_near(buffers, near_saved)
    carry = data.carry
    sums = buffers.array("sums", carry.sums.hi.astype(np.float64))
    assert sums is not None
    log_scale = None
    if carry.log_scale is not None:
        log_scale = buffers.array("log_scale", carry.log_scale.astype(np.float64))
    width = buffers.call["decay_width"]
    total = None
    if width:
        total = buffers.array("decay_total", np.zeros((*data.k.shape[:-2], 1, width)))
    none = np.zeros((*data.k.shape[:-2], 1, v.shape[-1] + 1), dtype=np.uint8)
    bad = buffers.array("bad", none if carry.bad is None else carry.bad.astype(np.uint8))
    assert bad is not None
    after = keep_tokens(plan, data, buffers)
    core().forward(buffers.call)
    log_decay = carry.log_decay
    if log_decay is not None and total is not None:
        log_decay = Wide(log_decay.hi + total, None)
    flags = bad.astype(bool) if bad.any() else None
    return Result(output, zero, Carry(Wide(sums, None), log_scale, log_decay, flags)), after


def give_near(buffers: Buffers, saved: NumpyArray) -> None:
    for name, x in zip(("near_reference", "near_normalizer", "near_top"), saved, strict=True):
        buffers.array(name, x)


def keep_tokens(plan: Plan, data: Data, buffers: Buffers) -> tuple[NumpyArray, NumpyArray] | None:
    """Room for what the core tells of the tokens that are near afterwards: which, how many."""
    near = data.carry.near
    if near is None or not plan.wants_state:
        return None
    lead, have = data.k.shape[:-2], near.k.shape[-2] - plan.sinks
    slots = plan.sinks + min(max(plan.window - 1, 0), have + data.k.shape[-2])
    index, count = np.empty((*lead, slots, 1), np.int64), np.empty((*lead, 1, 1), np.int64)
    buffers.call["near_slots_after"] = slots
    buffers.array("near_after", index)
    buffers.array("seen_after", count)
    return index, count


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
        return x.take_along_dim(index, -2)
    return np.take_along_axis(x, index, -2)


def assemble(
    plan: Plan,
    data: Data,
    how: Fused,
    kind: int | None,
    scales: Scales = (None, None),
    wide_weights: bool = False,
) -> Buffers:
    """What forward and backward are both given: sizes, the map, and the arrays that are read."""
    q, k, v = data.q, data.k, data.v
    heads = k.shape[-3]
    kind = TYPES[dtype_name(q)] if kind is None else kind
    compute = np.float64 if kind == TYPES["float64"] else np.float32
    width = 0
    if data.log_decay is not None:
        width = data.log_decay.shape[-1]
    elif data.restart is not None:
        width = 1
    buffers = Buffers(
        **how.numbers,
        type=kind,
        rows=math.prod(k.shape[:-2]),
        heads=heads,
        groups=q.shape[-3] // heads,
        keys=k.shape[-2],
        queries=q.shape[-2],
        width=v.shape[-1],
        causal=plan.causal,
        normalize=plan.normalize,
        zero_fill=plan.zero_fill,
        start=int(data.start),
        chunk=0 if plan.chunk_size == 64 else plan.chunk_size,
        root_scale=math.sqrt(plan.scale),
        decay_width=width,
    )
    if how.weight is not None:
        weight = np.ascontiguousarray(
            as_numpy(how.weight), dtype=np.float64 if wide_weights else compute
        )
        count = weight.shape[0] if weight.ndim == 3 else 1
        if how.bias is not None:
            bias = as_numpy(how.bias).astype(compute)
            bias = bias.reshape(-1, bias.shape[-1])
            count = max(count, len(bias))  # one weight for all heads, and a bias for each, or so
            buffers.array("bias", np.broadcast_to(bias, (count, bias.shape[-1])))
        buffers.array("weight", np.broadcast_to(weight, (count, *weight.shape[-2:])))
        buffers.call["weight_heads"] = count
    lead, lead_q = k.shape[:-2], q.shape[:-2]
    buffers.view("q", q, lead_q)
    buffers.view("k", k, lead)
    buffers.view("v", v, lead)
    buffers.view("mask", data.mask, lead)
    buffers.view("query_mask", data.query_mask, lead_q)
    buffers.view("restart", data.restart, lead)
    if data.log_decay is not None:
        buffers.view("log_decay", data.log_decay.astype(compute, copy=False), lead)
    for name, positions, where in (
        ("q_positions", data.q_positions, lead_q),
        ("k_positions", data.k_positions, lead),
    ):
        if positions is not None:
            buffers.view(name, positions.astype(np.float64, copy=False), where)
    buffers.view("q_scale", scales[0], lead_q)
    buffers.view("k_scale", scales[1], lead)
    if not plan.all_far:
        _assemble_near(plan, data, buffers)
    return buffers


def _assemble_near(plan: Plan, data: Data, buffers: Buffers) -> None:
    near, lead = data.carry.near, data.k.shape[:-2]
    buffers.call |= {
        "window": plan.window,
        "sinks": plan.sinks,
        "relative": plan.relative,
        "near_scale": plan.near_scale,
    }
    if data.gain is not None:
        buffers.array("gain", data.gain.astype(np.float64))
    if near is None:
        return
    buffers.array("seen", near.count.astype(np.int64))
    if near.k.shape[-2]:
        buffers.call["near_slots"] = near.k.shape[-2]
        buffers.view("near_k", near.k, lead)
        buffers.view("near_v", near.v, lead)
        buffers.view("near_keep", near.keep, lead)
        buffers.view("near_positions", near.positions.astype(np.float64), lead)


def kind_of(output: NumpyArray, inputs: int) -> int:
    """The type of the numbers in `output`: NumPy's own, or that of the inputs where it has none."""
    return TYPES.get(dtype_name(output), inputs)


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


def _by_stretches(plan: Plan, data: Data) -> Result:
    """Features of any map, a stretch of tokens at a time, never whole; then the core."""
    xp = space(data.q)
    m = data.carry.sums.hi.shape[-2]
    room = STRETCH // max(1, math.prod(data.q.shape[:-2]) * m)
    # Stretches end where blocks of the core do, so that bits do not depend on how many fit.
    blocks = BLOCKS if plan.chunk_size == 64 else min(plan.chunk_size, 64)
    step = max(1, room // blocks) * blocks
    n, n_q, start = data.k.shape[-2], data.q.shape[-2], int(data.start)
    edges = [0, *range(step - start % step, n, step), n]
    results, carry = [], data.carry
    if plan.causal:
        for at, end in itertools.pairwise(edges):
            here = slice(at, end)
            results.append(_stretch(plan, _cut(data, here, here, carry), at, at))
            carry = results[-1].carry
    else:
        one, nothing = slice(0, 1), zeros((*(1,) * (data.q.ndim - 2), 1, 1), data.q, xp.bool)
        for at, end in itertools.pairwise(edges):  # the keys, with one hidden query
            part = _cut(data, one, slice(at, end), carry)._replace(query_mask=nothing)
            carry = _stretch(plan, part, 0, at).carry
        for at in range(0, n_q, step):  # the queries, with one hidden key
            part = _cut(data, slice(at, at + step), one, carry)._replace(mask=nothing)
            results.append(_stretch(plan, part, at, 0))
    output = xp.concat([r.output for r in results], axis=-2)
    zero = xp.concat([r.zero for r in results], axis=-2) if plan.normalize else None
    return Result(output, zero, carry)


def _cut(data: Data, queries: slice, keys: slice, carry: Carry) -> Data:
    def take(x: Array | None, where: slice) -> Array | None:
        return None if x is None else x[..., where, :]

    return Data(
        take(data.q, queries), take(data.k, keys), take(data.v, keys), take(data.mask, keys),
        take(data.query_mask, queries), take(data.log_decay, keys), take(data.restart, keys),
        take(data.q_positions, queries), take(data.k_positions, keys), data.start, carry,
    )  # fmt: skip


def _stretch(plan: Plan, data: Data, q_first: int, k_first: int) -> Result:
    """A stretch whose first query and key are tokens q_first and k_first of the call."""
    xp = space(data.q)
    where_k = block_positions(data.k_positions, data.start, k_first, data.k.shape[-2], data.k)
    where_q = block_positions(data.q_positions, data.start, q_first, data.q.shape[-2], data.q)
    keys = prepare_keys(plan, data.k, data.v, data.mask, None, None, where_k)
    queries = prepare_queries(
        plan, data.q, data.mask if plan.causal else data.query_mask, where_q, data.k.shape[-3]
    )

    def by_head(x: Array | None) -> Array | None:
        return None if x is None else xp.reshape(x, (*data.q.shape[:-1], x.shape[-1]))

    def marked(features: Array, bad: Array | None) -> Array:
        """NaN for tokens that had one: the core sees to what depends on them."""
        return (
            features if bad is None else xp.where(bad, xp.full_like(features, math.nan), features)
        )

    phi_q = marked(by_head(queries.features), by_head(queries.bad))
    phi_k = marked(keys.features, None if keys.bad is None else keys.bad[..., -1:])
    m = data.carry.sums.hi.shape[-2]
    if phi_q.shape[-1] != m or phi_k.shape[-1] != m:
        raise ValueError(
            f"the feature map {plan.feature_map} gave {m} features for one token, but "
            f"{phi_k.shape[-1]} for {phi_k.shape[-2]} keys and {phi_q.shape[-1]} for "
            f"{phi_q.shape[-2]} queries; their number may depend on d alone"
        )
    part = data._replace(
        q=phi_q, k=phi_k, v=astype(data.v, phi_k.dtype), q_positions=None, k_positions=None,
        start=data.start + k_first,
    )  # fmt: skip
    given = dataclasses.replace(plan, feature_map=maps.Identity(), scale=1.0)
    q_scale, k_scale = (
        None if x is None else wide(x).hi for x in (by_head(queries.log_scale), keys.log_scale)
    )
    result = run(given, part, _numbers("given", m, m), (q_scale, k_scale))
    return result._replace(output=astype(result.output, data.v.dtype))
