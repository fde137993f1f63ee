"""The operator `LinearAttention`, while a call is being written as ONNX.

It has the recurrences of linear attention and of the delta rule, both without a decay, or with one
per head or per feature, in float32. The sums of the normaliser are one more column of the values.
All else (windows, log-scales, segments, erase and read vectors, maps that need wider sums) is left
to the chunked engines.
"""

from __future__ import annotations

import contextlib
import contextvars
import math
from collections.abc import Iterator
from typing import Any

from kerneltrick._arrays import Array, Wide, astype, space
from kerneltrick.engines._chunked import chunked
from kerneltrick.engines._delta_chunked import delta_chunked
from kerneltrick.engines._delta_problem import DeltaData, DeltaResult, DeltaRule, empty_state, unit
from kerneltrick.engines._engine import Signature
from kerneltrick.engines._problem import (
    Carry,
    Data,
    Result,
    Rule,
    add_decay,
    block_positions,
    finish,
    prepare_keys,
    prepare_queries,
)

# None: PyTorch writes a program without `kerneltrick.onnx.export`.
_wanted: contextvars.ContextVar[bool | None] = contextvars.ContextVar("onnx_operator", default=None)


@contextlib.contextmanager
def onnx_operator(wanted: bool) -> Iterator[None]:
    """While it lasts, calls that are written as ONNX become the operator if it is wanted."""
    token = _wanted.set(wanted)
    try:
        yield
    finally:
        _wanted.reset(token)


def written_without_state() -> bool:
    """Whether torch.onnx.export writes a program that was not prepared to hold a state."""
    import torch

    if torch.compiler.is_dynamo_compiling():
        return False
    return torch.onnx.is_in_onnx_export() and _wanted.get() is None


def supports(signature: Signature) -> bool:
    """Whether the operator may have such a call; `run` looks at its arrays."""
    if signature.host != "onnx" or signature.dtype != "float32" or signature.has_log_scale:
        return False
    rule = signature.rule
    return isinstance(rule, DeltaRule) or (rule.all_far and rule.causal and _stays_exact(rule))


def _stays_exact(rule: Rule) -> bool:
    """Whether sums in float32 suffice.

    Where a normaliser can come close to 0 although features are large, as with the power of q·k,
    they lose too many digits.
    """
    sign, positive_features = rule.feature_map.sign, rule.feature_map.forms_features
    return (
        not rule.normalize or sign == "positive" or (sign == "non-negative" and positive_features)
    )


def reason(signature: Signature) -> Exception:
    """Why nothing is written."""
    return ValueError('the onnx engine only writes calls as ONNX; use engine="auto"')


def attention(rule: Rule, data: Data) -> Result:
    """Linear attention by the operator, if there is one to be used and it has the call."""
    k = data.k
    if not _wanted.get() or k.ndim != 4 or data.restart is not None:
        return chunked(rule, data)
    xp, carry, heads, n = space(k), data.carry, k.shape[-3], k.shape[-2]
    where_q, where_k = (
        block_positions(x, data.start, 0, n, k) for x in (data.q_positions, data.k_positions)
    )
    keys = prepare_keys(rule, k, data.v, data.mask, data.log_decay, None, where_k)
    queries = prepare_queries(rule, data.q, data.mask, where_q, heads)
    values, sums = keys.values, carry.sums.hi
    # The operator has no marks for spoiled columns: here they are NaN.
    if keys.bad is not None:
        values = xp.where(keys.bad, xp.full_like(values, math.nan), values)
    if carry.bad is not None:
        sums = xp.where(carry.bad, xp.full_like(sums, math.nan), sums)
    kind, total = "linear", carry.log_decay
    if keys.log_decay is not None:
        kind = "gated"
        total = add_decay(total, xp.sum(keys.log_decay, axis=-2, keepdims=True))
    q = queries.features.flatten(-4, -3)
    mixed, sums = _node(kind, 1.0, q, keys.features, values, sums, keys.log_decay, None)
    mixed = mixed.unflatten(-3, queries.features.shape[-4:-2])
    output, zero = finish(rule, mixed, None, queries, None, data.v.dtype)
    after = Carry(Wide(astype(sums, carry.sums.hi.dtype), None), None, total, None)
    return Result(output, zero, after)


def delta_rule(rule: DeltaRule, data: DeltaData) -> DeltaResult:
    """The delta rule by the operator, if there is one to be used and it has the call."""
    others = (data.erase, data.read, data.mask, data.restart)
    fits = data.v.ndim == 4 and all(x is None for x in others)
    if not _wanted.get() or not fits or rule.scale == 0:  # 0 would stand for 1/√d
        return delta_chunked(rule, data)
    q, k, v, xp = data.q, data.k, data.v, space(data.q)
    if rule.normalize_qk:
        q, k = unit(q, xp), unit(k, xp)
    groups = v.shape[-3] // k.shape[-3]
    if groups > 1:
        q, k = (x.repeat_interleave(groups, dim=-3) for x in (q, k))
    state = empty_state(k, v) if data.state is None else data.state
    beta = xp.ones_like(v[..., :1]) if data.beta is None else data.beta
    kind = "delta" if data.log_decay is None else "gated_delta"
    output, after = _node(kind, rule.scale, q, k, v, state, data.log_decay, beta)
    return DeltaResult(output, after if rule.wants_state else None)


def _node(
    kind: str,
    scale: float,
    q: Array,
    k: Array,
    v: Array,
    state: Array,
    log_decay: Array | None,
    beta: Array | None,
) -> tuple[Any, Any]:
    """The operator on arrays (batch, heads, n, width): outputs, and the state after them."""
    import torch

    def packed(x: Any) -> Any:
        return None if x is None else x.transpose(1, 2).flatten(2).float()

    batch, heads, n = q.shape[:3]
    inputs = [packed(q), packed(k), packed(v), state.float(), packed(log_decay), packed(beta)]
    while inputs[-1] is None:
        inputs.pop()
    output, after = torch.onnx.ops.symbolic_multi_out(
        "com.microsoft::LinearAttention",
        inputs,
        {"update_rule": kind, "q_num_heads": heads, "kv_num_heads": v.shape[1], "scale": scale},
        dtypes=(torch.float32, torch.float32),
        shapes=((batch, n, heads * v.shape[-1]), state.shape),
        version=1,
    )
    return output.unflatten(-1, (heads, v.shape[-1])).transpose(1, 2), after
