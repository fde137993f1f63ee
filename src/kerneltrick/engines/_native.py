"""Linear attention by the compiled core (`native/`): fused, threaded, for arrays on the CPU.

This file turns a call into addresses and strides and keeps the arrays alive while the core runs.
`_native_torch` and `_native_jax` make operators of PyTorch's and JAX's of it; maps that the core
does not know are computed by `_stretches`, and handed over as features.
"""

from __future__ import annotations

import functools
import math
from typing import Annotated, Any, NamedTuple

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import (
    Array,
    Wide,
    as_numpy,
    astype,
    dtype_name,
    library,
    space,
    whole,
)
from kerneltrick.engines._core_call import (
    CoreCall,
    NumpyArray,
    aligned,
    check_isa,
    core,
    layout,
    missing_core,
)
from kerneltrick.engines._engine import Signature
from kerneltrick.engines._problem import (
    Carry,
    Data,
    Near,
    Result,
    Rule,
    add_decay,
    block_positions,
    rule_of,
)
from kerneltrick.maps import Fused

Numbers = dict[str, Any]  # fields of a call by name
Scales = tuple[Any, Any]  # log-scales (..., n, 1) of given queries and keys, or None

CODES = {"float32": "f32", "float64": "f64", "float16": "f16", "bfloat16": "bf16"}


def type_number(dtype: str) -> int:
    """How the core numbers the types that it reads."""
    return layout().types[CODES[dtype]]


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
    # log-scales of queries and keys that are given as features
    q_scale: Annotated[Array | None, "(..., n, 1)"]
    k_scale: Array | None
    sums: Array | None  # None: nobody sees a state
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
    rule: str  # `Rule.text`
    start: Any  # absolute position of the first token
    gradient: bool  # whether a gradient may be asked for


class CoreResult(NamedTuple):
    """What the core has computed; PyTorch's operator has empty arrays in place of None."""

    output: Array
    zero: Array | None
    sums: Array | None
    log_scale: Array | None
    bad: Array | None
    # what rows are divided by; beside a window (3, ...), see core.h
    saved: Annotated[Array | None, "(1, ...)"]
    # which tokens are near afterwards, and how many were seen: for `near_tokens_at`
    near_after: Array | None
    seen_after: Array | None  # how many tokens were seen


class Prepared(NamedTuple):
    """How the core runs the calls of a signature."""

    rule: Rule
    library: str
    fused: Fused | None  # None: features are made by the map, and given to the core
    recorded: bool  # whether a gradient may follow: then features are made of all tokens at once


def supports(signature: Signature) -> bool:
    """Whether the core runs a call, with every gradient that may be asked for."""
    if signature.library not in ("numpy", "torch", "jax") or signature.dtype not in CODES:
        return False
    if core() is None or signature.host in ("foreign", "onnx"):
        return False
    if _fused(signature) is not None:
        return True
    if not signature.rule.all_far:
        return False
    return signature.host == "eager" or not signature.has_log_scale


def prepare(signature: Signature) -> Prepared:
    fused, recorded = _fused(signature), signature.host == "recorded"
    return Prepared(signature.rule, signature.library, fused, recorded)


def reason(signature: Signature) -> Exception:
    """Why the core cannot run a call."""
    if core() is None:
        return RuntimeError(f"there is no compiled core: {missing_core()}; or use another engine")
    return ValueError(
        "the native engine cannot run this call: it takes NumPy arrays, CPU tensors and JAX arrays "
        "of float16, bfloat16, float32 or float64, and gives gradients for maps without log-scale "
        f"and those it has fused; here are {signature.library} {signature.dtype} and "
        f'{signature.rule.feature_map}. Use engine="auto"'
    )


def native(prepared: Prepared, data: Data) -> Result:
    """All the work in one call of the core; the memory it takes does not grow with n."""
    check_isa()
    rule, _, fused, recorded = prepared
    if fused is not None:
        return run(rule, data, fused, recorded)
    from kerneltrick.engines._stretches import by_stretches

    return by_stretches(rule, data, recorded)


def run(
    rule: Rule, data: Data, fused: Fused, recorded: bool, scales: Scales = (None, None)
) -> Result:
    """A call of a map that the core knows; `recorded`: PyTorch may ask for its gradient."""
    name = library(data.q)
    if name == "torch":
        from kerneltrick.engines import _native_torch

        return _native_torch.torch_attention(rule, data, fused, recorded, scales)
    if name == "jax":
        from kerneltrick.engines import _native_jax

        return _native_jax.jax_attention(rule, data, fused, scales)
    return numpy_attention(rule, data, fused, scales)


def _fused(signature: Signature) -> Fused | None:
    """How the core computes the map: a decay per feature leaves no closed form within a block."""
    rule: Rule = signature.rule
    if signature.decay_width > 1 and not rule.feature_map.forms_features:
        return None
    return rule.fused


@functools.lru_cache(maxsize=256)
def recipe(text: str, d: int, columns: int) -> tuple[Numbers, NumpyArray | None]:
    """What describes a map to the core, and the weights that its text stands for.

    `columns` is the number of columns of the weights given, 0 if there are none.
    """
    chosen = maps.get(text)
    made = chosen.core_recipe(d, columns)
    m = made.features or chosen.dim(d)
    numbers = {"map": layout().maps[made.kind], "inputs": d, "count": m, **made.numbers}
    return {**numbers, "columns": made.columns or m}, made.weight


def arguments(
    rule: Rule, data: Data, how: Fused, scales: Scales = (None, None), stateless: bool = False
) -> Arguments:
    """The arguments of a call; a `stateless` one neither reads a state nor makes one."""
    carry = data.carry
    near = (None,) * 5 if carry.near is None else carry.near
    state = (None,) * 3 if stateless else (carry.sums.hi, carry.log_scale, carry.bad)
    tensors = (*data[:9], *scales, *state, *how[1:], *near, data.gain)
    return Arguments._make((*tensors, rule.text, whole(data.start), False))


def numpy_attention(rule: Rule, data: Data, how: Fused, scales: Scales = (None, None)) -> Result:
    """A call on NumPy arrays."""
    given, carry = arguments(rule, data, plain(how), scales, rule.stateless), data.carry
    call = assemble(given, type_number(dtype_name(data.q)))
    if given.sums is None:
        made = compute(given, call)
        return Result(made.output, made.zero, carry)
    total, width = carry.log_decay, call["decay_width"]
    if width:
        added = call.array("decay_total", np.zeros((*data.k.shape[:-2], 1, width)))
    made = compute(given, call)
    if total is not None and width:
        total = add_decay(total, added)
    near = None
    if made.near_after is not None:
        near = near_tokens_at(data, made.near_after, made.seen_after)
    assert made.bad is not None
    bad = made.bad if rule.wants_state and made.bad.any() else None
    after = Carry(Wide(made.sums, None), made.log_scale, total, bad, near)
    return Result(made.output, made.zero, after)


def plain(how: Fused) -> Fused:
    """A map whose weights are NumPy's, whatever library they come from."""
    if how.weight is None and how.bias is None:
        return how
    return Fused(how.text, *(None if x is None else as_numpy(x) for x in how[1:]))


def compute(given: Arguments, call: CoreCall) -> CoreResult:
    """The forward pass on NumPy arrays; outputs in the type of sums if a gradient may follow."""
    made = give_results(given, call)
    call.forward()
    return made


def give_results(given: Arguments, call: CoreCall) -> CoreResult:
    """The arrays that the forward pass writes, which the call is given."""
    q, k, v, dtype = given.q, given.k, given.v, given.q.dtype
    rule = rule_of(given.rule)
    if given.gradient:
        wide = call["type"] == type_number("float64")
        dtype = np.dtype(np.float64 if wide else np.float32)
        call["output_type"] = type_number(dtype.name)
    output = aligned((*q.shape[:-1], v.shape[-1]), dtype)
    if given.gradient:
        call.view("output", output, q.shape[:-2])
    else:
        call.place("output", output)
    zero = None
    if rule.normalize:
        zero = np.zeros((*q.shape[:-1], 1), dtype=bool)
        call.place("zero", zero)
    saved = None
    if given.gradient:
        saved = np.zeros((1 if rule.all_far else 3, *q.shape[:-1]))
        give_saved(call, saved)
    sums = log_scale = bad = None
    if given.sums is not None:
        sums = call.array("sums", given.sums.astype(np.float64))
        if given.log_scale is not None:
            log_scale = call.array("log_scale", given.log_scale.astype(np.float64))
        bad = np.zeros((*k.shape[:-2], 1, v.shape[-1] + 1), dtype=bool)
        if given.bad is not None:
            bad |= given.bad
        call.array("bad", bad)
    index = count = None
    if given.near_k is not None and rule.wants_state:
        slots = slots_after(given, min)
        index = np.empty((*k.shape[:-2], slots, 1), np.int64)
        count = np.empty((*k.shape[:-2], 1, 1), np.int64)
        call["near_slots_after"] = slots
        call.array("near_after", index)
        call.array("seen_after", count)
    return CoreResult(output, zero, sums, log_scale, bad, saved, index, count)


def give_saved(call: CoreCall, saved: NumpyArray) -> None:
    """Where the core writes, and finds again, what the gradient needs of each row."""
    names = ("near_reference", "near_normalizer", "near_top")
    for name, x in zip(("normalizer",) if len(saved) == 1 else names, saved, strict=True):
        call.array(name, x)


def slots_after(given: Arguments, smaller: Any) -> Any:
    """How many tokens are kept after a call; `smaller` is min, or PyTorch's for unknown sizes."""
    assert given.near_k is not None
    rule = rule_of(given.rule)
    have = given.near_k.shape[-2] - rule.sinks
    return rule.sinks + smaller(max(rule.window - 1, 0), have + given.k.shape[-2])


def near_tokens_at(data: Data, index: Array, count: Array) -> Near:
    """The tokens at index (..., slots, 1): of those kept before (−1 − slot), or of the call."""
    before = data.carry.near
    assert before is not None
    xp = space(data.k)
    keep = index != xp.iinfo(index.dtype).min  # NO_TOKEN of core.h
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
        k=pick(before.k, data.k),
        v=pick(before.v, data.v),
        positions=pick(before.positions, where),
        keep=keep,
        count=astype(count, before.count.dtype),
    )


def along(x: Array, index: Array) -> Array:
    """x (..., n, e) at index (..., l, 1)."""
    if library(x) == "torch":
        return x.gather(-2, index.expand(*index.shape[:-1], x.shape[-1]))
    numbers = space(x) if library(x) == "jax" else np
    return numbers.take_along_axis(x, index, -2)


_BYTES = (4, 8, 2, 2)  # of a number, by the number of its type


@functools.lru_cache(maxsize=256)
def _outline(
    text: str,
    columns: int,
    kind: int,
    q: tuple[int, ...],
    k: tuple[int, ...],
    width: int,
    decay_width: int,
    strides: tuple[tuple[int, ...], ...],
) -> tuple[CoreCall, NumpyArray | None]:
    """A call without its arrays, for q and k of these shapes, and the weights of the map's text.

    What does not change from call to call is written once; `strides` are those of q, k and v. An
    output is laid out in the type of the call.
    """
    rule = rule_of(text)
    assert rule.fused is not None
    numbers, drawn = recipe(rule.fused.text, q[-1], columns)
    outline = CoreCall(
        **numbers,
        type=kind,
        output_type=kind,
        rows=math.prod(k[:-2]),
        heads=k[-3],
        groups=q[-3] // k[-3],
        keys=k[-2],
        queries=q[-2],
        width=width,
        chunk=0 if rule.chunk_size == 64 else rule.chunk_size,
        root_scale=math.sqrt(rule.scale),
        decay_width=decay_width,
        **rule.numbers(layout().slots),  # what both call by one name
    )
    for name, lead, steps in zip("qkv", (q[:-2], k[:-2], k[:-2]), strides, strict=True):
        outline.lay_out(name, lead, steps)
    output = np.empty((*q[:-1], width), f"V{_BYTES[kind]}")
    outline.lay_out("output", q[:-2], output.strides)
    return outline, drawn


# The arguments from `mask` to `k_scale`: whose leading indices each has, and the type that the core
# reads it in (None: that of arithmetic; bool: as it is).
_STREAMS = (
    ("mask", "k", bool),
    ("query_mask", "q", bool),
    ("log_decay", "k", None),
    ("restart", "k", bool),
    ("q_positions", "q", np.float64),
    ("k_positions", "k", np.float64),
    ("q_scale", "q", np.float64),
    ("k_scale", "k", np.float64),
)
_FIRST_STREAM = Arguments._fields.index("mask")
_AFTER_STREAMS = _FIRST_STREAM + len(_STREAMS)


def assemble(given: Arguments, kind: int, wide_weights: bool = False) -> CoreCall:
    """What forward and backward are both given: sizes, the map, and the arrays that are read."""
    q, k, v = given.q, given.k, given.v
    compute = np.float64 if kind == type_number("float64") else np.float32
    width = 0
    if given.log_decay is not None:
        width = given.log_decay.shape[-1]
    elif given.restart is not None:
        width = 1
    weight = given.key_weight if given.weight is None else given.weight
    columns = 0 if weight is None else weight.shape[-1]
    strides = q.strides, k.strides, v.strides
    outline, drawn = _outline(
        given.rule, columns, kind, q.shape, k.shape, v.shape[-1], width, strides
    )
    call = CoreCall(outline)
    if given.start:
        call["start"] = given.start
    call.place("q", q)
    call.place("k", k)
    call.place("v", v)
    if drawn is not None or columns:
        _assemble_weights(given, call, drawn, compute, np.float64 if wide_weights else compute)
    streams: Any = given[_FIRST_STREAM:_AFTER_STREAMS]
    for (name, whose, dtype), x in zip(_STREAMS, streams, strict=True):
        if x is not None:
            x = x.astype(compute if dtype is None else dtype, copy=False)
            call.view(name, x, (q if whose == "q" else k).shape[:-2])
    if given.gain is not None and not rule_of(given.rule).all_far:
        call.array("gain", given.gain.astype(np.float64, copy=False))
    if given.near_count is not None:
        _assemble_near(given, call)
    return call


def _assemble_weights(
    given: Arguments, call: CoreCall, drawn: NumpyArray | None, compute: Any, dtype: Any
) -> None:
    """The weights of a map, those of queries first; `drawn` are those that its text stands for."""
    weight, own = drawn if given.weight is None else given.weight, given.key_weight
    weight, bias = stacked(weight, given.bias, own, given.q.shape[-1], np)
    call.array("weight", weight.astype(dtype, copy=False))
    call["key_weight_heads"] = 0 if own is None else math.prod(own.shape[:-2])
    call["weight_heads"] = len(weight) - call["key_weight_heads"]
    if bias is not None:
        call.array("bias", bias.astype(compute, copy=False))


def stacked(
    weight: Array | None, bias: Array | None, own: Array | None, d: int, xp: Any
) -> tuple[Any, Any]:
    """The weights of all heads, those of keys last (h + h_k, d, columns), and biases (h, columns).

    There may be one weight for all heads, and a bias for each, or the other way round. `xp` is
    NumPy, or JAX's NumPy.
    """
    if weight is None and own is not None:
        weight = xp.eye(d)
    if weight is None:
        return None, None
    count = weight.shape[0] if weight.ndim == 3 else 1
    if bias is not None:
        bias = bias.reshape(-1, bias.shape[-1])
        count = max(count, len(bias))
        bias = xp.broadcast_to(bias, (count, bias.shape[-1]))
    weight = xp.broadcast_to(weight, (count, *weight.shape[-2:]))
    if own is not None:
        weight = xp.concatenate([weight, own.reshape(-1, *own.shape[-2:])])
    return weight, bias


def _assemble_near(given: Arguments, call: CoreCall) -> None:
    assert given.near_count is not None
    call.array("seen", given.near_count.astype(np.int64, copy=False))
    near: Any = (given.near_k, given.near_v, given.near_positions, given.near_keep)
    k, v, positions, keep = near  # all of them, or none
    if k.shape[-2]:
        call["near_slots"], lead = k.shape[-2], given.k.shape[:-2]
        call.view("near_k", k, lead)
        call.view("near_v", v, lead)
        call.view("near_keep", keep, lead)
        call.view("near_positions", positions.astype(np.float64, copy=False), lead)
