"""Gated linear attention: one decay for each token and feature."""

from __future__ import annotations

from typing import Any, TypeAlias

from torch import nn
from torch.nn import functional

from kerneltrick.torch._mixer import Heads, ProjectedMixer, Tokens, head_width, linear, split
from kerneltrick.torch._mixer_state import MixerState

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

RANK = 16  # the rank of the projection from x to the decays
TEMPERATURE = 16.0  # τ: decays start near 1


class GatedLinearAttention(ProjectedMixer):
    """U_t = diag(α_t) U_{t−1} + k_t v_tᵀ, o_t = U_tᵀ q_t/√d, with α_t in (0, 1) computed from x_t.

    Yang et al. 2024, Section 4. As in the paper, queries and keys are half as wide as values, and
    the output of each head is normalised and gated.

    >>> import torch
    >>> layer = GatedLinearAttention(64, num_heads=4)
    >>> y, state = layer(torch.randn(2, 100, 64))
    >>> y.shape, tuple(state.memory.U.shape)
    (torch.Size([2, 100, 64]), (2, 4, 8, 16))
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        short_convolution: int = 0,
        layer_idx: int | None = None,
        group: Any = None,
    ) -> None:
        width = head_width(hidden_size, num_heads) if value_dim is None else value_dim
        super().__init__(
            hidden_size,
            num_heads,
            head_dim=max(1, width // 2) if head_dim is None else head_dim,
            value_dim=width,
            short_convolution=short_convolution,
            output_norm=True,
            output_gate=True,
            layer_idx=layer_idx,
            group=group,
        )
        self.decay_down = nn.Linear(hidden_size, RANK, bias=False)
        self.decay_up = nn.Linear(RANK, num_heads * self.head_dim)

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        heads = super()._heads(tokens, state)
        # Section 4.4: α_t = σ(x_t W¹ W² + b)^{1/τ}
        decay = linear(self.decay_up, linear(self.decay_down, tokens.x))
        log_decay = split(functional.logsigmoid(decay) / TEMPERATURE, self.num_heads)
        return heads._replace(k=heads.k * self.head_dim**-0.5, log_decay=log_decay)
