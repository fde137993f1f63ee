"""Comba: gated DeltaNet that reads with a smaller key than it writes with."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn

from kerneltrick.torch._mixer import Heads, Tokens, unit
from kerneltrick.torch._mixer_state import MixerState
from kerneltrick.torch.mixers._delta_net import GatedDeltaNet


class Comba(GatedDeltaNet):
    """S_t = (I − β_t k_t p_tᵀ) a_t S_{t−1} + β_t k_t v_tᵀ, o_t = S_tᵀ (q_t − D p_t)/√d.

    Hu et al. 2025, *Improving Bilinear RNNs with Closed-loop Control*, with ‖q‖ = ‖k‖ = 1 and
    p_t = b k_t. The learned b in (0, 1) of each head makes the correction weaker than the writing;
    D takes back from the output what the state holds for the key of the token itself. As in the
    recurrent reference of flash-linear-attention, a token reads after the decay.

    | here | in the paper |
    |---|---|
    | b = σ(`feedback`), `read` = p = b k | b, state feedback β̃ = b β |
    | D, `correction` | d, output correction |
    | a_t, β_t, as in `GatedDeltaNet` | α_t, β_t |

    >>> layer = Comba(64, num_heads=2)
    >>> y, state = layer(torch.randn(2, 100, 64))
    >>> y.shape, tuple(state.memory.tensor.shape)
    (torch.Size([2, 100, 64]), (2, 2, 32, 32))
    """

    activation = staticmethod(torch.sigmoid)
    options: ClassVar[dict[str, Any]] = {}

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
        self.feedback = nn.Parameter(torch.ones(num_heads))
        self.correction = nn.Parameter(torch.ones(num_heads))

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        heads = super()._heads(tokens, state)
        k = unit(heads.k)
        b, D = (x.to(k.dtype)[:, None, None] for x in (self.feedback, self.correction))
        p = torch.sigmoid(b) * k
        return heads._replace(q=unit(heads.q) - D * p, k=k, read=p)
