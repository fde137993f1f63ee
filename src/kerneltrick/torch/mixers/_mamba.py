"""Mamba: every channel has N numbers that decay at their own rates, by a step Δ of its own."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from kerneltrick.attention import check_count, selective_scan
from kerneltrick.torch._implied import ScanOperator
from kerneltrick.torch._mixer import Heads, Mixer, Tokens, linear
from kerneltrick.torch._mixer_state import Held, Memory, MixerState
from kerneltrick.torch._short_convolution import ShortConvolution

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

STEPS = (1e-3, 1e-1)  # the range of Δ at the start of training


class Mamba(Mixer):
    """h_t = e^{Δ_t A} ⊙ h_{t−1} + (Δ_t ⊙ x_t) B_tᵀ, y_t = (h_t C_t + D ⊙ x_t) ⊙ silu(z_t).

    Gu & Dao 2023 (Algorithm 2 and Section 3.4), called S6. It computes the same as the mixer of
    Mamba in `transformers` 5.23. There are `expand`·hidden_size channels, each with `state_dim`
    numbers in h. B and C are shared by all channels; Δ comes from `step_rank` columns, by default
    hidden_size/16. `num_heads` has no effect, because every channel has its own Δ.

    >>> layer = Mamba(64, state_dim=8)
    >>> y, state = layer(torch.randn(2, 100, 64))
    >>> y.shape, tuple(state.memory.tensor.shape)
    (torch.Size([2, 100, 64]), (2, 128, 8))
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int = 1,
        *,
        state_dim: int = 16,
        expand: int = 2,
        step_rank: int | None = None,
        short_convolution: int = 4,
        layer_idx: int | None = None,
        group: Any = None,
    ) -> None:
        super().__init__(hidden_size, num_heads, layer_idx, group)
        who = self._who
        self.state_dim = check_count(who, "state_dim", state_dim, least=1)
        self.inner = check_count(who, "expand", expand, least=1) * hidden_size
        rank = math.ceil(hidden_size / 16) if step_rank is None else step_rank
        self.step_rank = check_count(who, "step_rank", rank, least=1)
        taps = check_count(who, "short_convolution", short_convolution, least=1)
        self.in_proj = nn.Linear(hidden_size, 2 * self.inner, bias=False)
        self.convolution = ShortConvolution(self.inner, taps, bias=True)
        self.x_proj = nn.Linear(self.inner, self.step_rank + 2 * state_dim, bias=False)
        self.step_proj = nn.Linear(self.step_rank, self.inner)
        nn.init.uniform_(self.step_proj.weight, -(self.step_rank**-0.5), self.step_rank**-0.5)
        low, high = (math.log(step) for step in STEPS)
        steps = torch.exp(low + (high - low) * torch.rand(self.inner))
        with torch.no_grad():
            self.step_proj.bias.copy_(steps + torch.log(-torch.expm1(-steps)))  # softplus⁻¹
        rates = torch.arange(1.0, state_dim + 1).expand(self.inner, state_dim)
        self.A_log = nn.Parameter(rates.log())
        self.D = nn.Parameter(torch.ones(self.inner))
        self.o_proj = nn.Linear(self.inner, hidden_size, bias=False)

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        mixed, gate = linear(self.in_proj, tokens.x).chunk(2, dim=-1)
        x, tail = tokens.convolved(self.convolution, mixed, state)
        sizes = (self.step_rank, self.state_dim, self.state_dim)
        step, B, C = linear(self.x_proj, x).split(sizes, dim=-1)
        step = functional.linear(step, self.step_proj.weight.to(x.dtype))
        return Heads(C, B, x, tail, counted=tokens.counted()[1], gate=gate, beta=step)

    def _mix(self, tokens: Tokens, heads: Heads, past: Memory | None) -> tuple[Tensor, Memory]:
        assert past is None or isinstance(past, Held)
        A = -torch.exp(self.A_log.to(torch.promote_types(heads.v.dtype, torch.float32)))
        state = None if past is None else past.tensor

        def run(state: Tensor | None) -> tuple[Tensor, Tensor]:
            return selective_scan(
                heads.v, heads.beta, A, heads.k, heads.q, self.D, z=heads.gate,
                dt_bias=self.step_proj.bias, dt_softplus=True, mask=tokens.mask,
                segment_ids=tokens.segment_ids, state=state, return_state=True,
            )  # fmt: skip

        if tokens.before is not None:
            state = self._carried(tokens, heads, A, run(None)[1], state)
        o, after = run(state)
        return o, Held(after, tokens.start + tokens.x.shape[1])

    def _carried(
        self, tokens: Tokens, heads: Heads, A: Tensor, added: Tensor, state: Tensor | None
    ) -> Tensor:
        """h before the tokens of this rank: each earlier rank multiplies it by e^{ΣΔA} and adds."""
        assert tokens.before is not None
        assert heads.beta is not None
        step = functional.softplus(heads.beta.to(A.dtype) + self.step_proj.bias.to(A.dtype))
        if tokens.mask is not None:
            step = torch.where(tokens.mask[..., None], step, torch.zeros_like(step))
        factor = torch.exp(step.sum(1)[..., None] * A)
        if tokens.runs is not None and tokens.x.shape[1]:  # a text that begins here forgets h
            factor = torch.where((tokens.runs[:, -1] > 0)[:, None, None], 0, factor)
        first = None if state is None else state[..., None]
        found = tokens.before.carried(torch.diag_embed(factor), added[..., None], first)
        return found[..., 0]

    def _operator(self, tokens: Tokens, heads: Heads, past: Memory | None) -> ScanOperator:
        wide = torch.promote_types(heads.v.dtype, torch.float32)
        x, B, C, D, bias = (
            y.to(wide) for y in (heads.v, heads.k, heads.q, self.D, self.step_proj.bias)
        )
        assert heads.beta is not None
        step = functional.softplus(heads.beta.to(wide) + bias)
        options = {"mask": tokens.mask, "segment_ids": tokens.segment_ids}
        return ScanOperator(x, step, -torch.exp(self.A_log.to(wide)), B, C, D, options)

    def _combine(self, heads: Heads, o: Tensor) -> Tensor:
        return linear(self.o_proj, o)  # the gate is in the scan

    def extra_repr(self) -> str:
        inner = f"state_dim={self.state_dim}, expand={self.inner // self.hidden_size}"
        return f"{super().extra_repr()}, {inner}, step_rank={self.step_rank}"
