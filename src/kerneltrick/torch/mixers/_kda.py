"""KDA and gated DeltaNet 2: the delta rule with a decay for each token and feature."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from kerneltrick.torch._mixer import Heads, ProjectedMixer, Tokens, linear, split
from kerneltrick.torch._mixer_state import MixerState
from kerneltrick.torch.mixers._delta_rule import DeltaMixer, decay_rates, step_biases


class FeatureDecay(DeltaMixer, ProjectedMixer):
    """What KDA and gated DeltaNet 2 share: decays per feature and a sigmoid gate, of low rank."""

    activation = staticmethod(torch.sigmoid)

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
            output_norm=True,
            layer_idx=layer_idx,
            group=group,
        )
        rank, features = self.value_dim, num_heads * self.head_dim
        self.decay_down = nn.Linear(hidden_size, rank, bias=False)
        self.decay_up = nn.Linear(rank, features, bias=False)
        self.A_log, self.step_bias = decay_rates(num_heads), step_biases(features)
        self.gate_down = nn.Linear(hidden_size, rank, bias=False)
        self.gate_up = nn.Linear(rank, num_heads * self.value_dim, bias=False)

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        x = tokens.x
        step = linear(self.decay_up, linear(self.decay_down, x)) + self.step_bias.to(x.dtype)
        rate = torch.exp(self.A_log.to(x.dtype))[:, None, None]
        return (
            super()
            ._heads(tokens, state)
            ._replace(
                log_decay=-rate * split(functional.softplus(step), self.num_heads),
                gate=linear(self.gate_up, linear(self.gate_down, x)),
            )
        )


class KDA(FeatureDecay):
    """S_t = (I − β_t k_t k_tᵀ) diag(α_t) S_{t−1} + β_t k_t v_tᵀ, o_t = S_tᵀ q_t/√d, ‖q‖ = ‖k‖ = 1.

    Kimi Delta Attention (Kimi Team 2025, *Kimi Linear*, Eq. 1): gated DeltaNet with one decay for
    each feature instead of one for all, log α_t = −e^A softplus(W₂ W₁ x_t + b). It computes the
    same as the layer of Kimi Linear in `transformers`.

    | here | in the paper |
    |---|---|
    | S (d × M) | S |
    | α_t = exp(log_decay), `decay_up`·`decay_down` | α_t, W↑ W↓ |
    | β_t | β_t |
    | sigmoid of `gate_up`·`gate_down` | σ(W↑ W↓ x) |

    >>> layer = KDA(64, num_heads=2)
    >>> y, state = layer(torch.randn(2, 100, 64))
    >>> y.shape, tuple(state.memory.tensor.shape)
    (torch.Size([2, 100, 64]), (2, 2, 32, 32))
    """

    options: ClassVar[dict[str, Any]] = {"normalize_qk": True}

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
        self.beta_proj = nn.Linear(hidden_size, num_heads, bias=False)

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        beta = torch.sigmoid(linear(self.beta_proj, tokens.x)).transpose(1, 2)
        return super()._heads(tokens, state)._replace(beta=beta)
