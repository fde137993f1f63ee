"""The functions of Mamba-2, as transformers calls them: the scan, and one step of it.

h_t = e^{Δ_t A} h_{t−1} + Δ_t x_t B_tᵀ, y_t = h_t C_t + D x_t is linear attention with q = C, k = B,
v = Δx and the log-decay ΔA (Dao & Gu 2024, Section 7).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, TypeAlias

import torch
from torch.nn import functional

from kerneltrick import engines
from kerneltrick._arrays import Wide, is_concrete, untranslated
from kerneltrick.attention import State, linear_attention, selective_scan
from kerneltrick.hf._packed import segments
from kerneltrick.hf._watch import is_watched, show
from kerneltrick.torch import SUM, LinearOperator

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


def chunk_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    return_final_states: bool = False,
    z: Tensor | None = None,
    **more: Any,
) -> Any:
    """`mamba_chunk_scan_combined`: hidden_states (batch, n, H, P), dt (batch, n, H), A (H,), B and
    C (batch, n, G, N), states (batch, H, P, N). Each of the G groups serves H/G heads.
    """
    batch, n, heads, _ = hidden_states.shape
    groups, wide = B.shape[2], torch.promote_types(hidden_states.dtype, torch.float32)
    x, dt = hidden_states.to(wide), dt.to(wide)
    if dt_bias is not None:
        dt = dt + dt_bias.to(wide)
    if dt_softplus:
        dt = functional.softplus(dt)
    dt = dt.clamp(*dt_limit)

    def by_group(tokens: Tensor) -> Tensor:  # (batch, n, H, …) → (batch, G, H/G, n, …)
        return tokens.unflatten(2, (groups, heads // groups)).movedim(1, 3)

    def shared(tokens: Tensor) -> Tensor:  # (batch, n, G, N) → (batch, G, H/G, n, N), not copied
        return tokens.to(wide).transpose(1, 2)[:, :, None].expand(-1, -1, heads // groups, -1, -1)

    texts = segments(more, batch, n)
    if is_watched():
        key, query = (y.to(wide).repeat_interleave(heads // groups, dim=2) for y in (B, C))
        q, k, v = (y.transpose(1, 2) for y in (query, key * dt[..., None], x))
        given = {**SUM, "log_decay": (A.to(wide) * dt).transpose(1, 2), "segment_ids": texts}
        own = None if D is None else D.to(wide).reshape(heads, -1)[:, :1, None]
        show(LinearOperator(q, k, v, "identity", given, own))
    made = decayed_attention(
        shared(C),
        shared(B),
        by_group(x * dt[..., None]),
        by_group(A.to(wide) * dt),
        None if texts is None else texts[:, None].expand(batch, groups, n),
        None if initial_states is None else initial_states.unflatten(1, (groups, -1)).mT,
        return_final_states,
    )
    output = made[0].movedim(3, 1).flatten(2, 3)
    # Some models ask for a view of the result, so it has to lie in the order of its axes.
    output = output.contiguous() if D is None else (D.to(wide)[..., None] * x).add_(output)
    if z is not None:
        output = output * functional.silu(z.to(wide))
    # The cache takes the dtype of the first state that it gets: float32, as from the reference.
    return (output, made[1].mT.flatten(1, 2)) if return_final_states else output


@untranslated
def decayed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    log_decay: Tensor,
    texts: Tensor | None,
    before: Tensor | None,
    wants_state: bool,
) -> tuple[Tensor, ...]:
    """o_t = S_tᵀ q_t with S_t = e^{log_decay} S_{t−1} + k_t v_tᵀ, and S at the end if asked for.

    The state `before` the first token is (..., d, M), as the one after the last.
    """
    log_decay, v = finite_decay(log_decay, v)
    options: dict[str, Any] = {"segment_ids": texts, "return_state": wants_state}
    options["state"] = None if before is None else _state(k, v, before)
    made = linear_attention(
        q, k, v, "identity", causal=True, scale=1.0, normalize=False, log_decay=log_decay, **options
    )
    return (made[0], made[1].U.to(v.dtype)) if wants_state else (made,)


def finite_decay(log_decay: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Return decays that the operators take, and NaN for the values where a decay was NaN or inf.

    The operators refuse such a decay, and with it all rows of a batch. A value that is NaN reaches
    the same outputs, those of its head from its token on. A decay of −inf forgets all before.

    log_decay: (..., n), or (..., n, d) with one for each feature.
    v: (..., n, M).
    """
    if is_concrete(log_decay) and bool(log_decay.isfinite().all()):
        return log_decay, v
    lost = ~(log_decay < math.inf)
    lost = lost.any(-1) if lost.ndim == v.ndim else lost
    # e^−1000 is 0 in every type.
    log_decay = torch.nan_to_num(log_decay, nan=0.0, posinf=0.0, neginf=-1000.0)
    return log_decay, v.masked_fill(lost[..., None], math.nan)


def _state(k: Tensor, v: Tensor, sums: Tensor) -> State:
    """The state of a linear attention whose normaliser nobody asks for."""
    empty = State.empty("identity", k, v, scale=1.0, decay_width=1)
    sums = functional.pad(sums.double(), (0, 1))  # the last column is the normaliser
    carry = empty.carry._replace(sums=Wide(sums, None))
    return dataclasses.replace(empty, carry=carry)


def state_update(
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    z: Tensor | None = None,
    **_: Any,
) -> Tensor:
    """`selective_state_update`: one token of Mamba-2, or of Mamba-1; `state` is changed in place.

    state is (batch, H, P, N), hidden_states, dt and z (batch, H, P), A (H, P, N), B and C (batch,
    G, N), D and dt_bias (H, P). Mamba-1 has no axes H and G.
    """
    if state.ndim == 3:
        return _scan_step(state, hidden_states, dt, A, B, C, D, dt_bias, dt_softplus, z)
    wide = torch.promote_types(hidden_states.dtype, torch.float32)
    x, B, C = hidden_states.to(wide), B.to(wide), C.to(wide)
    dt = _once(dt, 1).to(wide)
    if dt_bias is not None:
        dt = dt + _once(dt_bias, 1).to(wide)
    if dt_softplus:
        dt = functional.softplus(dt)
    decay = torch.exp(dt[..., None] * _once(A, 2).to(wide))
    write = (x * dt).unflatten(1, (B.shape[1], -1))[..., None]
    read = B[:, :, None, None]
    recorded = torch.is_grad_enabled() and torch._C._any_requires_grad(state, decay, write, B, C)
    if state.dtype == wide and not recorded:  # in place: a pass over the state less, and no memory
        new = state.mul_(decay).unflatten(1, (B.shape[1], -1)).addcmul_(write, read)
    else:
        before = state.to(wide, copy=True)  # the gradient needs it
        new = (before * decay).unflatten(1, (B.shape[1], -1))
        new = torch.addcmul(new, write, read)
        state.copy_(new.view(state.shape))
    # One product of a matrix and a vector for each group: its heads share C.
    output = (new.flatten(2, 3) @ C[..., None]).reshape(x.shape)
    if D is not None:
        output = output + x * D.to(wide)
    if z is not None:
        output = output * functional.silu(z.to(wide))
    return output.to(hidden_states.dtype)


def _scan_step(
    state: Tensor,
    x: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None,
    dt_bias: Tensor | None,
    dt_softplus: bool,
    z: Tensor | None,
) -> Tensor:
    """One token of Mamba-1."""
    again = engines.scan_step((x, dt, A, B, C, D, z, dt_bias), state, dt_softplus)
    if again is not None:
        return again
    if any(y is not None and y.dtype != x.dtype for y in (dt, B, C, z)):
        dt, B, C = (y.to(x.dtype) for y in (dt, B, C))
        z = None if z is None else z.to(x.dtype)
    made = selective_scan(
        x.unsqueeze(1),
        dt.unsqueeze(1),
        A,
        B.unsqueeze(1),
        C.unsqueeze(1),
        D,
        z=None if z is None else z.unsqueeze(1),
        dt_bias=dt_bias,
        dt_softplus=dt_softplus,
        state=state,
        inplace=True,
    )
    return made.squeeze(1)


def _once(x: Tensor, axes: int) -> Tensor:
    """A single entry of each of the last axes along which x repeats itself without being copied."""
    for axis in range(-axes, 0):
        if x.stride(axis) == 0:
            x = x.narrow(axis, 0, 1)
    return x


def combined_scan(*_: Any, **__: Any) -> None:
    """`mamba_split_conv1d_scan_combined` and `mamba_inner_fn` return None, as the references do.

    The layer then takes its own way through the convolution and the scan, which are ours. That way
    also clears padding between the two, which the combined forms do not.
    """
