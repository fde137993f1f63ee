"""Gated DeltaNet 2: erasing and writing have gates of their own, one for each column."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from kerneltrick.torch._mixer import Heads, Tokens, linear, split, unit
from kerneltrick.torch._mixer_state import MixerState
from kerneltrick.torch.mixers._kda import FeatureDecay


class GatedDeltaNet2(FeatureDecay):
    """S_t = (I − k_t (b_t ⊙ k_t)ᵀ) diag(α_t) S_{t−1} + k_t (c_t ⊙ v_t)ᵀ, o_t = S_tᵀ q_t/√d.

    *Gated DeltaNet-2: Decoupling Erase and Write in Linear Attention* (2026), with ‖q‖ = ‖k‖ = 1.
    The gates b_t and c_t say for each column of the key and of the value how much of the old is
    erased and of the new is written. KDA is the case in which both are β_t in all columns.

    | here | in the paper |
    |---|---|
    | b_t = σ(`erase_proj`), `read` = b ⊙ k | b_t, erase gate |
    | c_t = σ(`write_proj`) | w_t, write gate |
    | α_t = exp(log_decay), as in `KDA` | exp(g_t) |

    >>> layer = GatedDeltaNet2(64, num_heads=2)
    >>> y, state = layer(torch.randn(2, 100, 64))
    >>> y.shape, tuple(state.memory.tensor.shape)
    (torch.Size([2, 100, 64]), (2, 2, 32, 32))
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        short_convolution: int = 4,
        layer_idx: int | None = None,
        group: Any = None,
    ) -> None:
        super().__init__(
            hidden_size,
            num_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            short_convolution=short_convolution,
            layer_idx=layer_idx,
            group=group,
        )
        self.erase_proj = nn.Linear(hidden_size, num_heads * self.head_dim, bias=False)
        self.write_proj = nn.Linear(hidden_size, num_heads * self.value_dim, bias=False)

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        heads, x = super()._heads(tokens, state), tokens.x
        b = split(torch.sigmoid(linear(self.erase_proj, x)), self.num_heads)
        c = split(torch.sigmoid(linear(self.write_proj, x)), self.num_heads)
        k = unit(heads.k)
        return heads._replace(q=unit(heads.q), k=k, v=c * heads.v, read=b * k)
