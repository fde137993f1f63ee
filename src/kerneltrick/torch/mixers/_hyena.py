"""Hyena: gated long convolutions with implicit filters."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch import nn

from kerneltrick.attention import check_count
from kerneltrick.torch._implied import ConvolutionOperator
from kerneltrick.torch._mixer import Heads, Mixer, Tokens, linear
from kerneltrick.torch._mixer_state import Held, Memory, MixerState
from kerneltrick.torch._short_convolution import ShortConvolution

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

WAVES = 8  # sine waves in the input of the filter network
WIDTH = 64  # width of the filter network
FREQUENCY = 10.0  # frequency of its sine activations: Section 3.3


class Hyena(Mixer):
    """y_i = x²_i ⊙ Σ_{j ≤ i} h_{i−j} ⊙ x¹_j ⊙ v_j for each channel; v, x¹, x² are projections of x.

    Poli et al. 2023, order 2 (Definition 3.1). The filter h is implicit: a small network computes
    it from the distance, and an exponentially falling window multiplies it (Section 3.3). It has
    `length` taps and is 0 beyond. A whole text takes O(n log n) by FFT.

    **There is no state of constant size.** The filter can be any function of the distance, so each
    token needs up to `length` earlier ones. The state stores them, and one token costs O(length).
    For the same reason, ranks exchange that many tokens instead of sums.

    `num_heads` has no effect, because every channel has its own filter.

    >>> _ = torch.manual_seed(0)
    >>> layer, x = Hyena(16, length=1000), torch.randn(2, 100, 16)
    >>> whole, _ = layer(x)
    >>> _, state = layer(x[:, :99])
    >>> torch.allclose(layer(x[:, 99:], state)[0], whole[:, 99:], atol=1e-5)
    True
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int = 1,
        *,
        length: int = 1024,
        short_convolution: int = 3,
        layer_idx: int | None = None,
        group: Any = None,
    ) -> None:
        super().__init__(hidden_size, num_heads, layer_idx, group)
        self.length = check_count(self._who, "length", length, least=1)
        taps = check_count(self._who, "short_convolution", short_convolution, least=1)
        self.in_proj = nn.Linear(hidden_size, 3 * hidden_size, bias=False)
        self.convolution = ShortConvolution(3 * hidden_size, taps, silu=False)
        sizes = ((2 * WAVES + 1, WIDTH), (WIDTH, WIDTH), (WIDTH, hidden_size))
        self.filter = nn.ModuleList(nn.Linear(*each) for each in sizes)
        # The windows of the channels fall to 1 % between 1/20 of the length and all of it.
        ends = torch.logspace(math.log10(0.05), 0, hidden_size)
        self.log_decay = nn.Parameter(torch.log(math.log(100) / ends))
        self.own = nn.Parameter(torch.zeros(hidden_size))  # added to h_0
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def taps(self, count: int, dtype: Any) -> Tensor:
        """h_0 … h_{count−1}, (count, hidden_size)."""
        t = torch.arange(count, device=self.own.device, dtype=dtype)[:, None] / self.length
        waves = 2 * math.pi * t * torch.arange(1, WAVES + 1, device=t.device)
        h = torch.cat([t, waves.cos(), waves.sin()], dim=-1)
        for layer in self.filter[:-1]:
            h = torch.sin(FREQUENCY * linear(layer, h))
        h = linear(self.filter[-1], h) * torch.exp(-t * torch.exp(self.log_decay.to(dtype)))
        h = torch.cat([h[:1] + self.own.to(dtype), h[1:]])
        return torch.where(t < 1, h, torch.zeros_like(h))

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        mixed, tail = tokens.convolved(self.convolution, linear(self.in_proj, tokens.x), state)
        v, x1, x2 = mixed.chunk(3, dim=-1)
        return Heads(x2, x1, v, tail)

    def _mix(self, tokens: Tokens, heads: Heads, past: Memory | None) -> tuple[Tensor, Memory]:
        assert past is None or isinstance(past, Held)
        batch, n, size = tokens.x.shape
        z = _values(tokens, heads)
        held = z.new_zeros(batch, 0, size) if past is None else past.tensor.to(z.dtype)
        if tokens.before is not None:  # extend it to the length of the filter, or to all tokens
            reach = self.length - 1
            held = nn.functional.pad(held, (0, 0, reach - held.shape[1], 0))
            held = tokens.tail(z, held, reach)
            assert held is not None
            held = held[:, max(reach - tokens.start, 0) :]
        row, place, texts, longest = _places(tokens)
        # One line per text, the held tokens before the first text: (batch·texts, …, size)
        before, place = held.shape[1], place + held.shape[1]
        first = nn.functional.pad(held, (0, 0, 0, longest)).unsqueeze(1)
        line = nn.functional.pad(first, (0, 0, 0, 0, 0, texts - 1)).flatten(0, 1)
        where = (row * (before + longest) + place).flatten()
        line = line.flatten(0, 1).index_add(0, where, z.flatten(0, 1)).view_as(line)
        o = self._convolved(line, n == 1).flatten(0, 1)[where].view_as(z)
        return o.to(heads.v.dtype), Held(
            self._tokens_to_hold(tokens, line, row, place), tokens.start + n
        )

    def _operator(self, tokens: Tokens, heads: Heads, past: Memory | None) -> ConvolutionOperator:
        z = _values(tokens, heads)
        text, place, _, longest = _places(tokens)
        return ConvolutionOperator(z, self.taps(longest, z.dtype), text, place, tokens.mask)

    def _convolved(self, line: Tensor, last: bool) -> Tensor:
        """Σ_j h_{i−j} z_j at every place i of each line; with `last`, only at the end."""
        n = line.shape[1]
        h = self.taps(n, line.dtype)
        if not line.numel():  # the FFT takes nothing empty
            return line * h
        if last:
            end = (line * h.flip(0)).sum(1, keepdim=True)
            return nn.functional.pad(end, (0, 0, n - 1, 0))
        size = 2 * n  # twice as long, so that the end does not wrap around to the beginning
        product = torch.fft.rfft(line, size, dim=1) * torch.fft.rfft(h, size, dim=0)
        return torch.fft.irfft(product, size, dim=1)[:, :n]

    def _tokens_to_hold(self, tokens: Tokens, line: Tensor, row: Tensor, place: Tensor) -> Tensor:
        """The tokens that the next token in each row needs, the latest at the end."""
        n = line.shape[1]
        if not tokens.x.shape[1]:  # no texts but the one that is held
            return line
        took = 1 if tokens.mask is None else tokens.mask[:, -1:].to(torch.int64)
        end = place[:, -1:] + took
        back = end - torch.arange(min(self.length - 1, n), 0, -1, device=line.device)
        found = line[row[:, -1:], back.clamp(min=0)]
        return torch.where(back[..., None] >= 0, found, torch.zeros_like(found))

    def _combine(self, heads: Heads, o: Tensor) -> Tensor:
        return linear(self.o_proj, heads.q * o)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, length={self.length}"


def _values(tokens: Tokens, heads: Heads) -> Tensor:
    """x¹ ⊙ v (batch, n, channels), which the filter mixes."""
    z = heads.k * heads.v
    z = z.to(torch.promote_types(z.dtype, torch.float32))  # the FFT takes nothing narrower
    return z if tokens.mask is None else torch.where(tokens.mask[..., None], z, torch.zeros_like(z))


def _places(tokens: Tokens) -> tuple[Tensor, Tensor, int, int]:
    """The text and the place of each token (batch, n), texts per row, and the longest length.

    Texts are counted over the whole batch, with the same number of them in each row.
    """
    batch, n = tokens.x.shape[:2]
    device = tokens.x.device
    rows = torch.arange(batch, device=device)[:, None].expand(batch, n)
    own = torch.ones((batch, n), dtype=torch.int64, device=device)
    own = own if tokens.mask is None else own * tokens.mask
    rank = own.cumsum(1) - own
    if tokens.runs is None or not rank.numel():
        return rows, rank, 1, n
    runs = tokens.runs.expand(batch, n)
    begins = torch.zeros_like(rank)
    begins[:, 1:] = torch.where(runs[:, 1:] != runs[:, :-1], rank[:, 1:], 0)
    rank = rank - begins.cummax(1).values
    texts = int(runs.max()) + 1
    return rows * texts + runs, rank, texts, int(rank.max()) + 1
