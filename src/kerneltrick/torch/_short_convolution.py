"""The short convolution of linear-attention models, over the tokens that take part."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch import nn

from kerneltrick.attention import short_convolution

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


class ShortConvolution(nn.Module):  # type: ignore[misc] # torch is not followed by mypy
    """yᵢ = silu(b + Σ_{t < taps} w_t ⊙ x_{i−t}) for each channel; x is 0 before the start.

    `bias` says whether there is a b, and `silu` whether the activation is applied.

    A masked token has no effect, and no tap reaches into another text. The tail (batch, taps − 1,
    channels) holds the last taps − 1 tokens, which the next call needs.

    >>> _ = torch.manual_seed(0)
    >>> layer, x = ShortConvolution(8, taps=4), torch.randn(2, 10, 8)
    >>> whole, _ = layer(x)
    >>> left, tail = layer(x[:, :7])
    >>> right, _ = layer(x[:, 7:], tail)
    >>> torch.allclose(whole, torch.cat([left, right], dim=1))
    True
    """

    def __init__(self, channels: int, taps: int, *, bias: bool = False, silu: bool = True) -> None:
        super().__init__()
        self.channels, self.taps, self.silu = channels, taps, silu
        self.weight = nn.Parameter(torch.empty(taps, channels))
        bound = 1 / math.sqrt(taps)  # as nn.Conv1d
        nn.init.uniform_(self.weight, -bound, bound)
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(
        self,
        x: Tensor,
        tail: Tensor | None = None,
        *,
        mask: Tensor | None = None,
        runs: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Convolve x (batch, n, channels) and return the result and the new tail.

        `mask` (batch, n) is True where a token takes part. `runs` (batch or 1, n) is the number of
        the text of each token, starting at 0.
        """
        oldest_first = self.weight.flip(0).T
        activation: Any = "silu" if self.silu else None
        return convolved(x, oldest_first, self.bias, tail, mask, runs, activation)

    def extra_repr(self) -> str:
        return f"{self.channels}, taps={self.taps}"


def previous(
    x: Tensor, tail: Tensor | None, mask: Tensor | None, runs: Tensor | None
) -> tuple[Tensor, Tensor]:
    """x of the token before each token, 0 before the start of a text, and the tail after x."""
    weight = x.new_tensor([1.0, 0.0]).expand(x.shape[-1], 2)
    return convolved(x, weight, None, tail, mask, runs, None)


def convolved(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tail: Tensor | None,
    mask: Tensor | None,
    runs: Tensor | None,
    activation: Any,
) -> tuple[Tensor, Tensor]:
    """`kerneltrick.short_convolution`, for runs (batch or 1, n)."""
    if runs is not None and runs.shape[0] != x.shape[0]:
        runs = runs[0]
    return short_convolution(
        x, weight, bias, activation=activation, mask=mask, segment_ids=runs, state=tail,
        return_state=True,
    )  # fmt: skip


def tail_after(
    x: Tensor, tail: Tensor | None, count: int, mask: Tensor | None, runs: Tensor | None
) -> Tensor:
    """The last `count` tokens of the last text that take part, after `tail` and x; 0 before it."""
    batch, n, channels = x.shape
    if tail is None:
        tail = x.new_zeros(batch, count, channels)
    line = torch.cat([tail.to(x.dtype), x], dim=1)
    kept = (torch.arange(count, device=x.device) + n).expand(batch, count)
    if mask is not None:
        part = torch.cat([mask.new_ones(batch, count), mask], dim=1)
        order = torch.argsort(~part, dim=1, stable=True)  # those that take part come first
        kept = order.gather(1, kept - n + mask.sum(1, True))
    tail = line.gather(1, kept[..., None].expand(batch, count, channels))
    if runs is not None:  # the tail before x belongs to the first text
        runs = torch.cat([runs.new_zeros(batch, count), runs.expand(batch, n)], dim=1)
        same = runs.gather(1, kept) == runs[:, -1:]
        tail = torch.where(same[..., None], tail, torch.zeros_like(tail))
    return tail
