"""The compiled core for CPU tensors: the same call on the memory of the tensors, with gradients.

With gradients the call is the operator `kerneltrick::attend`, which PyTorch can record, and its
derivative `kerneltrick::attend_backward`, which recomputes φ.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch

from kerneltrick import maps
from kerneltrick._arrays import Wide, dtype_name
from kerneltrick.engines import _native
from kerneltrick.engines._problem import Carry, Data, Near, Plan, Result

if TYPE_CHECKING:
    Tensor: TypeAlias = Any  # PyTorch is optional, and so unknown to the type checker
else:
    Tensor = torch.Tensor

if _native.core() is not None:
    _native.core().share_threads()


def needs_gradient(plan: Plan, data: Data) -> bool:
    if not torch.is_grad_enabled():
        return False
    weights = vars(plan.feature_map).values()
    return any(getattr(x, "requires_grad", False) for x in (*_native.arrays_of(data), *weights))


def learned(feature_map: maps.FeatureMap, like: Tensor) -> bool:
    """Whether features have a gradient of their own: by weights that the map keeps out of sight."""
    if not torch.is_grad_enabled():
        return False
    token = torch.ones((*like.shape[:-2], 1, like.shape[-1]), dtype=_compute(like))
    return any(x is not None and x.requires_grad for x in feature_map.phi_key(token))


def forward_mode() -> bool:
    """Whether tensors may carry tangents, which the core would drop."""
    return bool(torch.autograd.forward_ad._current_level >= 0)


def to_numpy(x: Tensor | None) -> Any:
    """The memory of a tensor; bfloat16, which NumPy lacks, as the bits it is."""
    if x is None:
        return None
    x = x.detach().resolve_neg().resolve_conj()
    return (x.view(torch.int16) if x.dtype == torch.bfloat16 else x).numpy()


def to_torch(x: Any, dtype: torch.dtype | None = None) -> Any:
    if x is None:
        return None
    made = torch.from_numpy(np.ascontiguousarray(x))
    return made.view(torch.bfloat16) if dtype == torch.bfloat16 else made


def _empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """As torch.empty, in memory that `_native.aligned` gives."""
    name = "int16" if dtype == torch.bfloat16 else str(dtype).removeprefix("torch.")
    return to_torch(_native.aligned(tuple(shape), name), dtype)


def _plain(data: Data) -> Data:
    """The same call on NumPy arrays that share the tensors' memory."""
    *rest, near = data.carry
    kept = None if near is None else Near._make(map(to_numpy, near))
    carry = Carry._make(
        [*(Wide(to_numpy(x.hi), None) if isinstance(x, Wide) else to_numpy(x) for x in rest), kept]
    )
    return Data._make([*map(to_numpy, data[:9]), data.start, carry, to_numpy(data.gain)])


def attend(plan: Plan, data: Data, how: _native.Fused, scales: _native.Scales) -> Result:
    if needs_gradient(plan, data):
        return _recorded(plan, data, how)
    kind = _native.TYPES[dtype_name(data.q)]
    made = _native.attend(plan, _plain(data), how, kind, (to_numpy(scales[0]), to_numpy(scales[1])))
    carry = made.carry
    total, near = carry.log_decay, carry.near
    if near is not None:
        tokens = (to_torch(x, data.k.dtype) for x in (near.k, near.v))
        near = Near(*tokens, *(to_torch(x) for x in near[2:]))
    return Result(
        to_torch(made.output, data.q.dtype),
        to_torch(made.zero),
        Carry(
            Wide(to_torch(carry.sums.hi), None),
            to_torch(carry.log_scale),
            None if total is None else Wide(to_torch(total.hi), None),
            to_torch(carry.bad),
            near,
        ),
    )


def _recorded(plan: Plan, data: Data, how: _native.Fused) -> Result:
    def tensor(x: Any) -> Tensor | None:
        return x if x is None or torch.is_tensor(x) else torch.as_tensor(np.array(x))

    carry = data.carry
    near = (None,) * 5 if carry.near is None else carry.near
    more = {name: getattr(plan, name) for name in NEAR_PLAN}
    output, zero, sums, log_scale, bad, _, _, index, count = torch.ops.kerneltrick.attend(
        data.q, data.k, data.v, data.mask, data.query_mask, data.log_decay, data.restart,
        data.q_positions, data.k_positions, carry.sums.hi, carry.log_scale, carry.bad,
        tensor(how.weight), tensor(how.bias), *near, data.gain,
        json.dumps([how.numbers, more]), plan.scale, plan.causal,
        plan.normalize, plan.zero_fill, plan.chunk_size, int(data.start),
    )  # fmt: skip
    after = None
    if carry.near is not None and plan.wants_state:
        after = _native.kept(data, index, count)
    total = carry.log_decay
    if total is not None and data.log_decay is not None:
        # Outside the operator, so that the state's own log-decay has its gradient too.
        steps = data.log_decay.double()
        if data.mask is not None:
            steps = torch.where(data.mask, steps, torch.zeros_like(steps))
        if data.restart is not None:
            steps = torch.where(data.restart, torch.full_like(steps, -math.inf), steps)
        total = Wide(total.hi + steps.sum(-2, keepdim=True), None)
    elif total is not None and data.restart is not None:
        gone = data.restart.any(-2, keepdim=True).expand(total.hi.shape)
        total = Wide(torch.where(gone, torch.full_like(total.hi, -math.inf), total.hi), None)
    return Result(
        output.to(data.v.dtype),
        zero if plan.normalize else None,
        Carry(
            Wide(sums, None),
            None if carry.log_scale is None else log_scale,
            total,
            bad if bool(bad.any()) else None,
            after,
        ),
    )


def _compute(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


NEAR_PLAN = ("window", "sinks", "near_scale", "relative", "wants_state")
INPUTS = 20  # tensors that the operator takes


def _call(tensors: list[Tensor | None], spec: str, plan_numbers: tuple[Any, ...]) -> Any:
    """Plan, data and map from the operator's arguments."""
    (q, k, v, mask, query_mask, log_decay, restart, q_positions, k_positions,
     sums, log_scale, bad, weight, bias, *near, gain) = tensors  # fmt: skip
    scale, causal, normalize, zero_fill, chunk_size, start = plan_numbers
    numbers, more = json.loads(spec)
    plan = Plan(maps.Identity(), scale, causal, normalize, zero_fill, chunk_size, start, **more)
    kept = None if near[0] is None else Near._make(near)
    carry = Carry(Wide(sums, None), log_scale, None, bad, kept)
    data = Data(
        q, k, v, mask, query_mask, log_decay, restart, q_positions, k_positions, start, carry, gain
    )  # fmt: skip
    return plan, _plain(data), _native.Fused(numbers, weight, bias)


def _slots_after(k: Tensor, near_k: Tensor, spec: str) -> int:
    """How many tokens a state keeps after a call."""
    more = json.loads(spec)[1]
    if near_k is None or not more["wants_state"]:
        return 0
    have = near_k.shape[-2] - more["sinks"]
    return int(more["sinks"] + min(max(more["window"] - 1, 0), have + k.shape[-2]))


@torch.library.custom_op("kerneltrick::attend", mutates_args=())  # type: ignore[untyped-decorator] # PyTorch's
def _attend(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, query_mask: Tensor | None,
    log_decay: Tensor | None, restart: Tensor | None, q_positions: Tensor | None,
    k_positions: Tensor | None, sums: Tensor, log_scale: Tensor | None, bad: Tensor | None,
    weight: Tensor | None, bias: Tensor | None, near_k: Tensor | None, near_v: Tensor | None,
    near_positions: Tensor | None, near_keep: Tensor | None, near_count: Tensor | None,
    gain: Tensor | None, spec: str, scale: float, causal: bool,
    normalize: bool, zero_fill: float, chunk_size: int, start: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """(output, zero, sums, log_scale, bad, normalizer, near_saved, index, count).

    What does not exist is empty. `near_saved` (3, ...) is what near weights are relative to and
    divided by and the largest exponent; `index` and `count` tell what `_native.kept` is to keep.
    """
    plan, data, how = _call(
        [q, k, v, mask, query_mask, log_decay, restart, q_positions, k_positions, sums, log_scale,
         bad, weight, bias, near_k, near_v, near_positions, near_keep, near_count, gain],
        spec, (scale, causal, normalize, zero_fill, chunk_size, start),
    )  # fmt: skip
    normalizer = (_empty if plan.all_far else torch.zeros)(q.shape[:-1], dtype=torch.float64)
    near_saved = torch.zeros((0 if plan.all_far else 3, *q.shape[:-1]), dtype=torch.float64)
    output = _empty((*q.shape[:-1], v.shape[-1]), _compute(q))
    made, after = _native.compute(
        plan, data, how, _native.TYPES[dtype_name(q)], normalizer=normalizer.numpy(),
        near_saved=near_saved.numpy(), output=output.numpy(),
    )  # fmt: skip
    index, count = (torch.empty(0, dtype=torch.int64) for _ in range(2))
    if after is not None:
        index, count = (torch.from_numpy(x) for x in after)
    flags = torch.zeros((*k.shape[:-2], 1, v.shape[-1] + 1), dtype=torch.bool)
    if made.carry.bad is not None:
        flags = to_torch(made.carry.bad)
    empty = torch.empty(0)
    return (
        output,
        empty.bool() if made.zero is None else to_torch(made.zero),
        to_torch(made.carry.sums.hi),
        empty.double() if log_scale is None else to_torch(made.carry.log_scale),
        flags,
        normalizer,
        near_saved,
        index,
        count,
    )


@_attend.register_fake  # type: ignore[untyped-decorator] # PyTorch's
def _(
    q: Tensor, k: Tensor, v: Tensor, mask: Any, query_mask: Any, log_decay: Any, restart: Any,
    q_positions: Any, k_positions: Any, sums: Tensor, log_scale: Any, bad: Any, weight: Any,
    bias: Any, near_k: Any, near_v: Any, near_positions: Any, near_keep: Any, near_count: Any,
    gain: Any, spec: str, scale: float, causal: bool, normalize: bool, zero_fill: float,
    chunk_size: int, start: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    far = not (json.loads(spec)[1]["window"] or json.loads(spec)[1]["sinks"])
    slots = _slots_after(k, near_k, spec)
    wanted = near_k is not None and json.loads(spec)[1]["wants_state"]
    return (
        q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=_compute(q)),
        q.new_empty((*q.shape[:-1], 1) if normalize else (0,), dtype=torch.bool),
        torch.empty_like(sums, memory_format=torch.contiguous_format),
        q.new_empty(0, dtype=torch.float64)
        if log_scale is None
        else torch.empty_like(log_scale, memory_format=torch.contiguous_format),
        q.new_empty((*k.shape[:-2], 1, v.shape[-1] + 1), dtype=torch.bool),
        q.new_empty(q.shape[:-1], dtype=torch.float64),
        q.new_empty((0 if far else 3, *q.shape[:-1]), dtype=torch.float64),
        q.new_empty((*k.shape[:-2], slots, 1) if wanted else (0,), dtype=torch.int64),
        q.new_empty((*k.shape[:-2], 1, 1) if wanted else (0,), dtype=torch.int64),
    )


@torch.library.custom_op("kerneltrick::attend_backward", mutates_args=())  # type: ignore[untyped-decorator] # PyTorch's
def _attend_backward(
    d_output: Tensor, d_sums: Tensor, output: Tensor, normalizer: Tensor, near_saved: Tensor,
    q: Tensor, k: Tensor,
    v: Tensor, mask: Tensor | None, query_mask: Tensor | None, log_decay: Tensor | None,
    restart: Tensor | None, q_positions: Tensor | None, k_positions: Tensor | None, sums: Tensor,
    log_scale: Tensor | None, bad: Tensor | None, weight: Tensor | None, bias: Tensor | None,
    near_k: Tensor | None, near_v: Tensor | None, near_positions: Tensor | None,
    near_keep: Tensor | None, near_count: Tensor | None, gain: Tensor | None,
    spec: str, scale: float, causal: bool, normalize: bool, zero_fill: float, chunk_size: int,
    start: int,
) -> tuple[
    Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor
]:  # fmt: skip
    """Gradients of q, k, v, log_decay, sums, weight, bias, kept k and v, and the gain.

    What does not exist is empty.
    """
    plan, data, how = _call(
        [q, k, v, mask, query_mask, log_decay, restart, q_positions, k_positions, sums, log_scale,
         bad, weight, bias, near_k, near_v, near_positions, near_keep, near_count, gain],
        spec, (scale, causal, normalize, zero_fill, chunk_size, start),
    )  # fmt: skip
    buffers = _native.assemble(plan, data, how, _native.TYPES[dtype_name(q)])
    call, lead, lead_q = buffers.call, k.shape[:-2], q.shape[:-2]
    call["output_type"] = _native.TYPES[dtype_name(output)]
    buffers.view("output", to_numpy(output), lead_q)
    buffers.view("d_output", to_numpy(d_output), lead_q)
    buffers.array("normalizer", to_numpy(normalizer))
    buffers.array("sums", to_numpy(sums))
    buffers.array("log_scale", to_numpy(log_scale))
    made = [_empty(x.shape, x.dtype) for x in (q, k, v)]
    for name, x, where in zip(("d_q", "d_k", "d_v"), made, (lead_q, lead, lead), strict=True):
        buffers.view(name, to_numpy(x), where)
    d_state = d_sums.double().contiguous().clone()
    buffers.array("d_sums", d_state.numpy())
    d_decay, d_weight, d_bias, d_near_k, d_near_v, d_gain = (
        torch.empty(0, dtype=torch.float64) for _ in range(6)
    )
    if not plan.all_far:
        _native.give_near(buffers, to_numpy(near_saved))
        d_gain = torch.zeros(q.shape[:-2], dtype=torch.float64)
        buffers.array("d_gain", d_gain.numpy())
    if near_k is not None and near_v is not None:
        d_near_k, d_near_v = (torch.zeros_like(x) for x in (near_k, near_v))
        buffers.view("d_near_k", to_numpy(d_near_k), lead)
        buffers.view("d_near_v", to_numpy(d_near_v), lead)
    if log_decay is not None:
        d_decay = torch.zeros(log_decay.shape, dtype=torch.float64)
        buffers.array("d_log_decay", d_decay.numpy())
    learned = weight is not None and "favor" not in _native.NAMES[call["map"]]
    if learned:
        p = (call["weight_heads"], call["inputs"], call["columns"])
        d_weight = torch.zeros(p, dtype=torch.float64)
        buffers.array("d_weight", d_weight.numpy())
        if bias is not None:
            d_bias = torch.zeros((p[0], p[2]), dtype=torch.float64)
            buffers.array("d_bias", d_bias.numpy())
    _native.core().backward(call)
    if learned:
        assert weight is not None
        d_weight = d_weight.sum_to_size(1, *weight.shape[-2:]) if weight.ndim == 2 else d_weight
        d_weight = d_weight.reshape(weight.shape).to(weight.dtype)
    if bias is not None and learned:
        count = math.prod(bias.shape[:-1])
        d_bias = d_bias if d_bias.shape[0] == count else d_bias.sum(0, keepdim=True)
        d_bias = d_bias.reshape(bias.shape).to(bias.dtype)
    if log_decay is not None:
        d_decay = d_decay.to(log_decay.dtype)
    if gain is not None and not plan.all_far:
        d_gain = d_gain.reshape(-1, gain.shape[0]).sum(0).reshape(gain.shape).to(gain.dtype)
    return (*made, d_decay, d_state, d_weight, d_bias, d_near_k, d_near_v, d_gain)


@_attend_backward.register_fake  # type: ignore[untyped-decorator] # PyTorch's
def _(
    d_output: Tensor, d_sums: Tensor, output: Tensor, normalizer: Tensor, near_saved: Tensor,
    q: Tensor, k: Tensor,
    v: Tensor, mask: Any, query_mask: Any, log_decay: Any, restart: Any, q_positions: Any,
    k_positions: Any, sums: Tensor, log_scale: Any, bad: Any, weight: Any, bias: Any,
    near_k: Any, near_v: Any, near_positions: Any, near_keep: Any, near_count: Any, gain: Any,
    spec: str,
    scale: float, causal: bool, normalize: bool, zero_fill: float, chunk_size: int, start: int,
) -> tuple[Tensor, ...]:  # fmt: skip
    def like(x: Any) -> Tensor:
        if x is None:
            return q.new_empty(0, dtype=torch.float64)
        return torch.empty_like(x, memory_format=torch.contiguous_format)

    learned = "favor" not in _native.NAMES[json.loads(spec)[0]["map"]]
    return (
        like(q), like(k), like(v), like(log_decay), like(sums.double()),
        like(weight if learned else None), like(bias if learned else None),
        like(near_k), like(near_v), like(gain),
    )  # fmt: skip


def _setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    made, normalizer, near_saved = output[0], output[5], output[6]
    ctx.save_for_backward(made, normalizer, near_saved, *inputs[:INPUTS])
    ctx.numbers = inputs[INPUTS:]
    ctx.mark_non_differentiable(output[1], *output[3:])


def _derivative(ctx: Any, d_output: Any, _z: Any, d_sums: Any, *_: Any) -> tuple[Any, ...]:
    made, normalizer, near_saved, *tensors = ctx.saved_tensors
    sums = tensors[9]
    d_output = torch.zeros_like(made) if d_output is None else d_output
    d_sums = torch.zeros_like(sums) if d_sums is None else d_sums
    got = torch.ops.kerneltrick.attend_backward(
        d_output, d_sums, made, normalizer, near_saved, *tensors, *ctx.numbers
    )
    d_q, d_k, d_v, d_decay, d_first, d_weight, d_bias, d_near_k, d_near_v, d_gain = got
    grads: list[Any] = [None] * (len(tensors) + len(ctx.numbers))
    grads[0:3] = [d_q, d_k, d_v]
    grads[5] = d_decay if tensors[5] is not None else None
    grads[9] = d_first.to(sums.dtype)
    grads[12] = d_weight if d_weight.numel() else None
    grads[13] = d_bias if d_bias.numel() else None
    if tensors[14] is not None:
        grads[14:16] = [d_near_k, d_near_v]
    grads[19] = d_gain if tensors[19] is not None and near_saved.shape[0] else None
    return tuple(g if ctx.needs_input_grad[i] else None for i, g in enumerate(grads))


_attend.register_autograd(_derivative, setup_context=_setup)


def _second(*_: Any) -> Any:
    raise RuntimeError(
        "the native engine has first derivatives only; for derivatives of gradients use "
        'engine="chunked"'
    )


_attend_backward.register_autograd(_second)
