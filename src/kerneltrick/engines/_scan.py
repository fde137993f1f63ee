"""The selective scan of Mamba: what a call consists of, and the engines for any array library."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import numpy as np

from kerneltrick._arrays import Array, astype, compute_dtype, scan, space, zeros
from kerneltrick.engines._convolution import sigmoid

CHUNK = 32  # tokens whose states are formed at once


@dataclasses.dataclass(frozen=True)
class ScanRule:
    """All about a call that is not an array."""

    softplus: bool
    wants_state: bool
    inplace: bool = False  # whether the core may overwrite the state
    operator: ClassVar[str] = "selective_scan"
    weighted: ClassVar[bool] = False


class ScanData(NamedTuple):
    """The arrays of a checked call."""

    x: Array  # (..., n, channels)
    dt: Array  # (..., n, channels)
    A: Array  # (channels, N)
    B: Array  # (..., n, N)
    C: Array  # (..., n, N)
    D: Array | None  # (channels,)
    z: Array | None  # (..., n, channels)
    dt_bias: Array | None  # (channels,)
    mask: Array | None  # (..., n, 1), True where a token takes part; leading axes may be 1
    restart: Array | None  # (..., n, 1), True where a text begins, not at the first token
    state: Array | None  # (..., channels, N)


class ScanResult(NamedTuple):
    output: Array
    state: Array | None  # after the last token, if it is asked for


def scan_recurrent(rule: ScanRule, data: ScanData) -> ScanResult:
    """h ← e^{ΔA} ⊙ h + Δ x Bᵀ, y = h C, one token at a time."""
    return _by_blocks(rule, data, 1)


def scan_chunked(rule: ScanRule, data: ScanData) -> ScanResult:
    """All states of a chunk at once, by doubling: O(log chunk) steps in place of one per token.

    Two neighbours h ↦ a h + b are one such step, of factor a₂a₁ and addend a₂b₁ + b₂ (Blelloch
    1990). No logarithm of a decay is divided by another, so nothing overflows.
    """
    return _by_blocks(rule, data, CHUNK)


def _by_blocks(rule: ScanRule, data: ScanData, size: int) -> ScanResult:
    x, xp, compute = data.x, space(data.x), compute_dtype(data.x)
    channels, states = data.A.shape
    A = astype(data.A, compute)
    state = zeros((*x.shape[:-2], channels, states), x, compute)
    state = state if data.state is None else astype(data.state, compute)
    n = x.shape[-2]
    if n == 0:
        return ScanResult(x, state * 1 if rule.wants_state else None)  # not the caller's own
    bias = None if data.dt_bias is None else astype(data.dt_bias, compute)
    D = None if data.D is None else astype(data.D, compute)

    def body(h: Array, blocks: Any, first: Any, valid: Array | None) -> Any:
        *parts, mask, restart = blocks
        keep = valid if mask is None else mask if valid is None else mask & valid
        numbers: list[Any] = [
            None if y is None else astype(_masked(y, keep), compute) for y in parts
        ]
        x, step, B, C, z = numbers
        step = step if bias is None else step + bias
        if rule.softplus:
            step = xp.logaddexp(step, xp.zeros_like(step))
        if keep is not None:  # a hidden token neither decays nor adds
            step = xp.where(keep, step, xp.zeros_like(step))
        factor = xp.exp(step[..., None] * A)
        added = (step * x)[..., None] * B[..., None, :]
        fresh = None if restart is None else xp.broadcast_to(restart, (*x.shape[:-1], 1))[..., None]
        if size == 1:
            h = h if fresh is None else xp.where(fresh[..., 0, :, :], xp.zeros_like(h), h)
            every = (factor[..., 0, :, :] * h + added[..., 0, :, :])[..., None, :, :]
        else:
            every = _doubled(factor, added, fresh, h)
        h = every[..., -1, :, :]
        y = xp.sum(every * C[..., None, :], axis=-1)
        y = y if D is None else y + D * x
        y = y if z is None else y * (z * sigmoid(z))
        y = y if keep is None else xp.where(keep, y, xp.zeros_like(y))
        return h, (astype(y, data.x.dtype),)

    streams = (data.x, data.dt, data.B, data.C, data.z, data.mask, data.restart)
    with np.errstate(over="ignore", invalid="ignore"):
        state, (output,) = scan(body, state, streams, length=n, block=size)
    assert output is not None
    return ScanResult(output, state if rule.wants_state else None)


def _masked(x: Array, keep: Array | None) -> Array:
    """x with 0 where a token is hidden, so that a NaN there has no effect, forward or backward."""
    xp = space(x)
    return x if keep is None else xp.where(keep, x, xp.zeros_like(x))


def _doubled(factor: Array, added: Array, fresh: Array | None, h: Array) -> Array:
    """Every h_t = factor_t ⊙ h_{t−1} + added_t of a chunk (..., chunk, channels, N), after h.

    Where `fresh`, h_t is added_t alone, whatever was before.
    """
    xp = space(added)
    size, shift = added.shape[-3], 1
    while shift < size:
        before_a, before_b = factor[..., :-shift, :, :], added[..., :-shift, :, :]
        a, b = factor[..., shift:, :, :], added[..., shift:, :, :]
        moved, product = a * before_b + b, a * before_a
        if fresh is not None:
            own = fresh[..., shift:, :, :]
            moved, product = xp.where(own, b, moved), xp.where(own, a, product)
            joined = own | fresh[..., :-shift, :, :]
            fresh = xp.concat([fresh[..., :shift, :, :], joined], axis=-3)
        added = xp.concat([added[..., :shift, :, :], moved], axis=-3)
        factor = xp.concat([factor[..., :shift, :, :], product], axis=-3)
        shift *= 2
    every = factor * h[..., None, :, :] + added
    return every if fresh is None else xp.where(fresh, added, every)
