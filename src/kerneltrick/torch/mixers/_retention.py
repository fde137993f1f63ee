"""Retention, the mixer of RetNet: one constant decay for each head."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import torch

from kerneltrick.torch._mixer import Heads, ProjectedMixer, Tokens, head_width
from kerneltrick.torch._mixer_state import MixerState

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


class Retention(ProjectedMixer):
    """o_i = Σ_{j ≤ i} γ^{i−j} (q_i·k_j) v_j, with rotary positions and one γ for each head.

    Sun et al. 2023. As in the paper, values are twice as wide as queries and keys, and the output
    of each head is normalised, so that no normaliser is needed, and gated.

    >>> _ = torch.manual_seed(0)
    >>> layer, x = Retention(64, num_heads=4), torch.randn(2, 100, 64)
    >>> whole, _ = layer(x)
    >>> _, state = layer(x[:, :99])
    >>> torch.allclose(layer(x[:, 99:], state)[0], whole[:, 99:], atol=1e-5)
    True
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        layer_idx: int | None = None,
        group: Any = None,
    ) -> None:
        width = head_width(hidden_size, num_heads) if head_dim is None else head_dim
        # Eq. 5 is xPos with the same decay for all columns of a head: a rotation, and γ.
        super().__init__(
            hidden_size,
            num_heads,
            head_dim=width,
            value_dim=2 * width if value_dim is None else value_dim,
            rotary=True,
            output_norm=True,
            output_gate=True,
            layer_idx=layer_idx,
            group=group,
        )
        # Eq. 8: γ = 1 − 2^{−5−h}
        self._log_decay = [math.log1p(-(2.0 ** (-5 - h))) for h in range(num_heads)]

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        heads = super()._heads(tokens, state)
        k = heads.k * self.head_dim**-0.5
        # In the dtype that the sums are computed in: bfloat16 would round γ of later heads to 1.
        wide = torch.promote_types(k.dtype, torch.float32)
        log_decay = torch.tensor(self._log_decay, dtype=wide, device=k.device)
        return heads._replace(k=k, log_decay=log_decay)
