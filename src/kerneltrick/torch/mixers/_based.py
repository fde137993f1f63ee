"""Based: the second-order Taylor map of exp on narrow queries and keys."""

from __future__ import annotations

from typing import Any

from kerneltrick.torch._attention import Attention
from kerneltrick.torch._mixer import head_width


class Based(Attention):
    """Linear attention with φ(q)·φ(k) = 1 + t + t²/2, where t = q·k/√d′ and q, k have d′ columns.

    Arora et al. 2024, Section 4.1, use d′ = `feature_dim` = 16; values have the width of a head. A
    state holds C(d′ + 2, 2) numbers for each column of the values, and as many again for the
    normaliser. Their model alternates these layers with exact sliding-window attention (Section
    4.2): "based+softmax@window=64" in `LanguageModel`.

    >>> import torch
    >>> layer = Based(64, num_heads=2)
    >>> _, state = layer(torch.randn(1, 100, 64))
    >>> tuple(state.memory.U.shape)
    (1, 2, 153, 32)
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        feature_dim: int = 16,
        short_convolution: int = 0,
        layer_idx: int | None = None,
        group: Any = None,
    ) -> None:
        super().__init__(
            hidden_size,
            num_heads,
            head_dim=feature_dim,
            value_dim=head_width(hidden_size, num_heads),
            feature_map="taylor:order=2",
            short_convolution=short_convolution,
            layer_idx=layer_idx,
            group=group,
        )
