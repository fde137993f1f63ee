"""The short convolution of linear-attention models, over the tokens that take part."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

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
        weight = self.weight.to(x.dtype)
        seen, tail = before(x, tail, self.taps - 1, mask, runs)
        y = weight[0] * x
        for t in range(1, self.taps):
            y = y + weight[t] * seen[t - 1]
        if self.bias is not None:
            y = y + self.bias.to(x.dtype)
        return nn.functional.silu(y) if self.silu else y, tail

    def extra_repr(self) -> str:
        return f"{self.channels}, taps={self.taps}"


def before(
    x: Tensor, tail: Tensor | None, count: int, mask: Tensor | None, runs: Tensor | None
) -> tuple[list[Tensor], Tensor]:
    """x shifted back by 1, 2, …, `count` tokens that take part, and the tail after x.

    Before the start of a text, x is 0.
    """
    n, line = x.shape[1], _line(x, tail, count, mask, runs)
    seen = []
    for t in range(1, count + 1):
        back = line.x[:, count - t : count - t + n]
        if line.runs is not None:
            same = line.runs[:, count - t : count - t + n] == line.runs[:, count:]
            back = torch.where(same[..., None], back, torch.zeros_like(back))
        if line.order is not None:
            back = torch.empty_like(back).scatter(1, line.order[..., None].expand_as(back), back)
        seen.append(back)
    return seen, _last(line, count, mask)


def tail_after(
    x: Tensor, tail: Tensor | None, count: int, mask: Tensor | None, runs: Tensor | None
) -> Tensor:
    """The last `count` tokens of the last text that take part, after `tail` and x; 0 before it."""
    return _last(_line(x, tail, count, mask, runs), count, mask)


class _Line(NamedTuple):
    """A tail and the tokens after it; those that take part come first, in order."""

    x: Tensor
    runs: Tensor | None
    last: Tensor | None  # (batch, 1): the text of the last token, whether it takes part or not
    order: Tensor | None  # (batch, n): the original places of the tokens after the tail


def _line(
    x: Tensor, tail: Tensor | None, count: int, mask: Tensor | None, runs: Tensor | None
) -> _Line:
    batch, n, channels = x.shape
    if tail is None:
        tail = x.new_zeros(batch, count, channels)
    order = last = None
    if runs is not None:  # the tail belongs to the first text
        runs = torch.cat([runs.new_zeros(batch, count), runs.expand(batch, n)], dim=1)
        last = runs[:, -1:]
    if mask is not None:
        order = torch.argsort(~mask, dim=1, stable=True)
        x = x.gather(1, order[..., None].expand_as(x))
        if runs is not None:
            runs = torch.cat([runs[:, :count], runs[:, count:].gather(1, order)], dim=1)
    return _Line(torch.cat([tail.to(x.dtype), x], dim=1), runs, last, order)


def _last(line: _Line, count: int, mask: Tensor | None) -> Tensor:
    batch, n, channels = line.x.shape
    kept = torch.arange(count, device=line.x.device)
    kept = (kept + n - count).expand(batch, count) if mask is None else kept + mask.sum(1, True)
    tail = line.x.gather(1, kept[..., None].expand(batch, count, channels))
    if line.runs is not None:
        same = line.runs.gather(1, kept) == line.last
        tail = torch.where(same[..., None], tail, torch.zeros_like(tail))
    return tail
