"""Power retention: linear attention with the kernel (q·k)ᵖ and a decay for each token."""

from __future__ import annotations

import math
from typing import Any

from torch import nn
from torch.nn import functional

from kerneltrick.attention import check_count
from kerneltrick.torch._mixer import Heads, ProjectedMixer, Tokens, head_width, linear
from kerneltrick.torch._mixer_state import MixerState

KEPT = 0.999  # the decay of a token at the start of training


class PowerRetention(ProjectedMixer):
    """o_i = Σ_{j ≤ i} w_ij v_j / Σ_{j ≤ i} w_ij with w_ij = γ_{j+1} ⋯ γ_i (q_i·k_j)ᵖ.

    Buckman et al. 2025, *Scaling Context Requires Rethinking Attention*. The p-th power of an inner
    product is a kernel, and its features are the monomials of degree p: the map
    `poly:degree=p,constant=0`. So the state has C(d + p − 1, p) rows instead of d, and `degree` and
    `head_dim` set its size without changing the number of weights much. An even p keeps all weights
    ≥ 0, as softmax does, so that they can be normalised.

    | here | in the paper |
    |---|---|
    | p, `degree` | p, deg |
    | φ(x), all monomials of degree p | φ_pow(x), symmetric power embedding |
    | log γ_t = log σ(w·x_t + b) | log g_t, gating |
    | U, Z | S, Z (sum of keys) |

    >>> import torch
    >>> layer = PowerRetention(64, num_heads=2, head_dim=8)
    >>> y, state = layer(torch.randn(2, 100, 64))
    >>> y.shape, tuple(state.memory.U.shape)
    (torch.Size([2, 100, 64]), (2, 2, 36, 32))
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        degree: int = 2,
        short_convolution: int = 0,
        layer_idx: int | None = None,
        group: Any = None,
    ) -> None:
        width = head_width(hidden_size, num_heads) if value_dim is None else value_dim
        super().__init__(
            hidden_size,
            num_heads,
            head_dim=head_dim,
            value_dim=width,
            short_convolution=short_convolution,
            layer_idx=layer_idx,
            group=group,
        )
        self.degree = check_count(self._who, "degree", degree, least=2)
        if degree % 2:
            raise ValueError(
                f"{self._who} needs an even degree, so that no weight is negative, not {degree}"
            )
        self.decay_proj = nn.Linear(hidden_size, num_heads)
        nn.init.constant_(self.decay_proj.bias, math.log(KEPT / (1 - KEPT)))

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        decay = functional.logsigmoid(linear(self.decay_proj, tokens.x)).transpose(1, 2)
        return super()._heads(tokens, state)._replace(log_decay=decay)

    def _attention(self, tokens: Tokens, heads: Heads) -> tuple[str, dict[str, Any]]:
        return f"poly:degree={self.degree},constant=0", {
            "causal": True,
            "log_decay": heads.log_decay,
            "mask": tokens.mask,
            "segment_ids": tokens.segment_ids,
            "on_zero": "zero",
        }

    def _kind(self) -> str:
        return f", degree={self.degree}"
