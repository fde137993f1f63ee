"""The short convolution: what a call consists of, and the engine that runs on any array library."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, NamedTuple

import numpy as np

from kerneltrick._arrays import Array, astype, compute_dtype, device, index_dtype, space, zeros


@dataclasses.dataclass(frozen=True)
class ConvolutionRule:
    """All about a call that is not an array."""

    silu: bool
    wants_state: bool
    inplace: bool = False  # whether the core may overwrite the state
    operator: ClassVar[str] = "short_convolution"
    weighted: ClassVar[bool] = False


class ConvolutionData(NamedTuple):
    """The arrays of a checked call."""

    x: Array  # (..., n, channels)
    weight: Array  # (channels, taps), the oldest tap first
    bias: Array | None  # (channels,)
    mask: Array | None  # (..., n, 1), True where a token takes part; leading axes may be 1
    restart: Array | None  # (..., n, 1), True where a text begins, not at the first token
    state: Array | None  # (..., taps − 1, channels)


class ConvolutionResult(NamedTuple):
    output: Array
    state: Array | None  # after the last token, if it is asked for


def direct(rule: ConvolutionRule, data: ConvolutionData) -> ConvolutionResult:
    """A sum of shifted copies of x. Tokens that take part are moved together first."""
    x, dtype, lead = data.x, data.x.dtype, data.x.shape[:-2]
    n, channels = x.shape[-2:]
    xp, compute, before = space(x), compute_dtype(x), data.weight.shape[-1] - 1
    rows, index = math.prod(lead), index_dtype(x)

    def flat(y: Array, width: int) -> Array:
        return xp.reshape(xp.broadcast_to(y, (*lead, *y.shape[-2:])), (rows, y.shape[-2], width))

    with np.errstate(over="ignore", invalid="ignore"):
        past = zeros((rows, before, channels), x, dtype)
        if data.state is not None:
            past = flat(astype(data.state, dtype), channels)
        tokens, order, keep, runs = flat(x, channels), None, None, None
        if data.restart is not None and n:
            runs = xp.cumulative_sum(astype(flat(data.restart, 1), index), axis=-2)
            last = runs[:, -1:, :]
        if data.mask is not None and n:
            keep = flat(data.mask, 1)
            order = xp.argsort(astype(~keep, index), axis=-2, stable=True)[..., 0]
            tokens = xp.where(keep, tokens, xp.zeros_like(tokens))
            tokens = _at(tokens, order)
            runs = None if runs is None else _at(runs, order)
        line = xp.concat([past, tokens], axis=-2)
        if runs is not None:  # the state belongs to the first text
            runs = xp.concat([zeros((rows, before, 1), x, index), runs], axis=-2)

        y = zeros((rows, n, channels), x, compute)
        if data.bias is not None:
            y = y + astype(data.bias, compute)
        for tap in range(before + 1):
            seen = line[:, tap : tap + n, :]
            if runs is not None:
                same = runs[:, tap : tap + n, :] == runs[:, before:, :]
                seen = xp.where(same, seen, xp.zeros_like(seen))
            y = y + astype(data.weight[:, tap], compute) * astype(seen, compute)
        if rule.silu:
            y = y * sigmoid(y)
        if order is not None:
            y = _at(y, xp.argsort(order, axis=-1))
            y = xp.where(keep, y, xp.zeros_like(y))
        output = xp.reshape(astype(y, dtype), x.shape)
        if not rule.wants_state:
            return ConvolutionResult(output, None)
        kept = xp.arange(before, device=device(x), dtype=index) + n
        kept = xp.broadcast_to(kept, (rows, before))
        if keep is not None:
            kept = kept - n + xp.sum(astype(keep, index), axis=-2)
        after = _at(line, kept)
        if runs is not None:
            after = xp.where(_at(runs, kept) == last, after, xp.zeros_like(after))
        return ConvolutionResult(output, xp.reshape(after, (*lead, before, channels)))


def sigmoid(x: Array) -> Array:
    """1 / (1 + e^{−x}), without overflow, and with all its derivatives."""
    xp = space(x)
    return xp.exp(-xp.logaddexp(xp.zeros_like(x), -x))


def _at(x: Array, index: Array) -> Array:
    """x (rows, n, width) at index (rows, m): (rows, m, width)."""
    xp = space(x)
    rows, n, width = x.shape
    start = xp.arange(rows, device=device(x), dtype=index.dtype)[:, None] * n
    chosen = xp.reshape(index + start, (-1,)) if index.size else xp.reshape(index, (0,))
    found = xp.take(xp.reshape(x, (rows * n, width)), chosen, axis=0)
    return xp.reshape(found, (rows, index.shape[-1], width))
