"""The attention that a layer implies: its output is linear in its values, with these weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import torch
from torch.nn import functional

from kerneltrick.attention import attention_weights, delta_weights

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

Rows: TypeAlias = np.ndarray[Any, Any]  # the numbers of the queries

MOST_ROWS = 4096  # most rows of weights that are formed without rows=: 64 MB per head
SUM = {"causal": True, "normalize": False, "scale": 1.0}  # o_i = Σ_{j ≤ i} (q_i·k_j) v_j
CHANNELS = 64  # channels of a scan whose weights are formed at a time


class Implied(NamedTuple):
    """The weights of a layer and the values that they multiply."""

    weights: Tensor  # (batch, heads, rows, columns)
    values: Tensor  # (batch, heads, columns, width)


class HeadOperator(Protocol):
    """What the heads of a layer compute from their inputs."""

    def implied(self, rows: Rows) -> Implied:
        """The weights of these queries, and the values."""
        ...


@dataclasses.dataclass(frozen=True, eq=False)
class LinearOperator:
    """`linear_attention` of queries, keys and values (batch, heads, n, width).

    `own` (batch or 1, heads, n or 1, 1) is a weight that the value of a token gets in its own
    output in addition.
    """

    q: Tensor
    k: Tensor
    v: Tensor  # fewer heads than q where heads are grouped
    feature_map: Any
    options: Mapping[str, Any]  # keywords of `linear_attention`
    own: Tensor | None = None

    def implied(self, rows: Rows) -> Implied:
        weights = attention_weights(self.q, self.k, self.feature_map, rows=rows, **self.options)
        if self.own is not None:
            weights = with_own(weights, self.own, rows, self.options.get("mask"))
        return Implied(weights, shared(self.v, weights.shape[1]))


@dataclasses.dataclass(frozen=True, eq=False)
class DeltaOperator:
    """`delta_rule` of queries, keys and values; `steps` corrections belong to each token."""

    q: Tensor
    k: Tensor
    v: Tensor
    beta: Any
    options: Mapping[str, Any]  # keywords of `delta_rule`
    steps: int = 1

    def implied(self, rows: Rows) -> Implied:
        last = rows * self.steps + self.steps - 1  # the last correction of a token has its query
        weights = delta_weights(self.q, self.k, self.beta, rows=last, **self.options)
        return Implied(weights, shared(self.v, weights.shape[1]))


@dataclasses.dataclass(frozen=True, eq=False)
class ScanOperator:
    """`selective_scan` of x (batch, n, channels) without its gate; every channel is a head."""

    x: Tensor
    step: Tensor  # Δ (batch, n, channels), after its bias and softplus
    A: Tensor  # (channels, N)
    B: Tensor  # (batch, n, N)
    C: Tensor
    D: Tensor | None
    options: Mapping[str, Any]  # mask and segment_ids

    def implied(self, rows: Rows) -> Implied:
        return Implied(torch.cat(list(self.pieces(rows)), dim=1), self.x.mT[..., None])

    def pieces(self, rows: Rows) -> Iterator[Tensor]:
        """The weights of CHANNELS channels at a time, because all of them may not fit."""
        for first in range(0, self.x.shape[-1], CHANNELS):
            part = slice(first, first + CHANNELS)
            step = self.step[..., part].mT[..., None]  # (batch, channels, n, 1)
            B, C = (y[:, None].expand(-1, step.shape[1], -1, -1) for y in (self.B, self.C))
            options = {"log_decay": step * self.A[part][:, None], **SUM, **self.options}
            weights = attention_weights(C, step * B, "identity", rows=rows, **options)
            if self.D is not None:
                own = self.D[part, None, None]
                weights = with_own(weights, own, rows, self.options.get("mask"))
            yield weights


@dataclasses.dataclass(frozen=True, eq=False)
class ConvolutionOperator:
    """A causal convolution of z (batch, n, channels) by taps (longest, channels)."""

    z: Tensor
    taps: Tensor
    text: Tensor  # (batch, n): the number of the text of each token
    place: Tensor  # (batch, n): its place in the text; masked tokens take none
    mask: Tensor | None

    def implied(self, rows: Rows) -> Implied:
        places = torch.as_tensor(rows, device=self.z.device)
        distance = self.place[:, places, None] - self.place[:, None]  # (batch, rows, n)
        seen = (distance >= 0) & (self.text[:, places, None] == self.text[:, None])
        if self.mask is not None:
            seen = seen & self.mask[:, places, None] & self.mask[:, None]
        weights = self.taps[distance.clamp(min=0)] * seen[..., None]
        return Implied(weights.movedim(-1, 1), self.z.mT[..., None])


def with_own(weights: Tensor, own: Tensor, rows: Rows, mask: Tensor | None) -> Tensor:
    """Add `own` (…, n or 1, 1) to the weight of each row's own token."""
    n = weights.shape[-1]
    own = own.expand(*own.shape[:-2], n, 1)
    if mask is not None:
        own = own * mask[:, None, :, None]
    places = torch.as_tensor(rows, device=weights.device)
    added = own[..., places, :]
    return weights + functional.one_hot(places, n).to(weights.dtype) * added


def shared(values: Tensor, heads: int) -> Tensor:
    """Values (batch, fewer heads, n, width) once for each of the heads that share them."""
    return values.repeat_interleave(heads // values.shape[1], dim=1)
