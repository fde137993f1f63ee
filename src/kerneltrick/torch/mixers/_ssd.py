"""SSD, the mixer of Mamba-2: the step Δ of a token sets one decay for each head."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from kerneltrick.attention import check_count
from kerneltrick.torch._mixer import Heads, Mixer, Tokens, joined, linear, split
from kerneltrick.torch._mixer_state import MixerState
from kerneltrick.torch._short_convolution import ShortConvolution

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

STEPS = (1e-3, 1e-1)  # the range of Δ at the start of training


class SSD(Mixer):
    """h_t = e^{Δ_t A} h_{t−1} + Δ_t B_t x_tᵀ, y_t = h_tᵀ C_t + D x_t.

    This is linear attention with q = C, k = ΔB, v = x and the log-decay ΔA (Dao & Gu 2024, Eq. 2
    and Section 7). It computes the same as the mixer of Mamba-2 in `transformers` 5.23. A head has
    `expand`·hidden_size/num_heads columns. B and C have `state_dim` columns and are shared by the
    heads of a group, whose outputs are normalised together.

    >>> layer = SSD(64, num_heads=4, state_dim=16)
    >>> y, state = layer(torch.randn(2, 100, 64))
    >>> y.shape, tuple(state.memory.U.shape)
    (torch.Size([2, 100, 64]), (2, 4, 16, 32))
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        state_dim: int = 64,
        expand: int = 2,
        num_groups: int = 1,
        short_convolution: int = 4,
        layer_idx: int | None = None,
        group: Any = None,
    ) -> None:
        super().__init__(hidden_size, num_heads, layer_idx, group)
        who = self._who
        self.state_dim = check_count(who, "state_dim", state_dim, least=1)
        self.num_groups = check_count(who, "num_groups", num_groups, least=1)
        self.inner = check_count(who, "expand", expand, least=1) * hidden_size
        if self.inner % num_heads or num_heads % num_groups:
            raise ValueError(
                f"{who} needs expand·hidden_size ({self.inner}) to be a multiple of num_heads "
                f"({num_heads}), and that to be a multiple of num_groups ({num_groups})"
            )
        taps = check_count(who, "short_convolution", short_convolution, least=1)
        wide = self.inner + 2 * num_groups * state_dim  # x, B, C
        self.in_proj = nn.Linear(hidden_size, self.inner + wide + num_heads, bias=False)
        self.convolution = ShortConvolution(wide, taps, bias=True)
        self.A_log = nn.Parameter(torch.arange(1.0, num_heads + 1).log())
        self.D = nn.Parameter(torch.ones(num_heads))
        low, high = (math.log(step) for step in STEPS)
        steps = torch.exp(low + (high - low) * torch.rand(num_heads))
        self.step_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))  # softplus⁻¹
        self.norm = nn.RMSNorm(self.inner, eps=1e-5)
        self.o_proj = nn.Linear(self.inner, hidden_size, bias=False)

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        sizes = (self.inner, self.convolution.channels, self.num_heads)
        gate, mixed, step = linear(self.in_proj, tokens.x).split(sizes, dim=-1)
        mixed, tail = tokens.convolved(self.convolution, mixed, state)
        wide = self.num_groups * self.state_dim
        x, B, C = mixed.split((self.inner, wide, wide), dim=-1)
        x, B, C = split(x, self.num_heads), split(B, self.num_groups), split(C, self.num_groups)
        step = functional.softplus(step + self.step_bias.to(step.dtype)).transpose(1, 2)
        A = -torch.exp(self.A_log.to(step.dtype))
        shared = self.num_heads // self.num_groups
        return Heads(
            q=_repeated(C, shared),
            k=_repeated(B, shared) * step[..., None],
            v=x,
            tail=tail,
            counted=tokens.counted()[1],
            gate=gate,
            log_decay=A[:, None] * step,
            own=self.D.to(x.dtype)[:, None, None],
        )

    def _combine(self, heads: Heads, o: Tensor) -> Tensor:
        gated = joined(o) * functional.silu(heads.gate)  # before the norm, unlike other mixers
        grouped = gated.unflatten(-1, (self.num_groups, -1))
        normed = functional.rms_norm(grouped, grouped.shape[-1:], eps=self.norm.eps).flatten(-2)
        return linear(self.o_proj, normed * self.norm.weight.to(o.dtype))

    def extra_repr(self) -> str:
        inner = f"state_dim={self.state_dim}, expand={self.inner // self.hidden_size}"
        return f"{super().extra_repr()}, {inner}, num_groups={self.num_groups}"


def _repeated(x: Tensor, times: int) -> Tensor:
    """Every head so many times, side by side; `repeat_interleave` fails in ONNX without tokens."""
    return x[:, :, None].expand(-1, -1, times, -1, -1).flatten(1, 2)
