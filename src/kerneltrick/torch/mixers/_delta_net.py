"""DeltaNet and gated DeltaNet: each step corrects what a key retrieves towards its value."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from kerneltrick.torch._mixer import Heads, ProjectedMixer, Tokens, linear
from kerneltrick.torch._mixer_state import MixerState
from kerneltrick.torch.mixers._delta_rule import DeltaMixer, decay_rates, step_biases


class DeltaNet(DeltaMixer, ProjectedMixer):
    """S_t = S_{t−1} + β_t k_t (v_t − S_{t−1}ᵀ k_t)ᵀ, o_t = S_tᵀ q_t/√d, ‖q‖ = ‖k‖ = 1.

    Yang et al. 2024 (Eq. 3), after Schlag et al. 2021. The gate β_t = σ(w_β·x_t) says how much of
    the old value of k_t is replaced by the new one. With `negative_eigenvalues` it is twice that,
    so that a token can also flip the sign of what it finds, which counting and other tracking of
    states needs (Grazzi et al. 2024). A short convolution comes before the heads and a norm after
    them. The states are not sums over tokens, so they cannot be merged.

    | here | in the paper |
    |---|---|
    | S (d × M), o = Sᵀq | Sᵀ (M × d), o = Sq |
    | β_t | β_t |

    >>> _ = torch.manual_seed(0)
    >>> layer, x = DeltaNet(64, num_heads=2), torch.randn(2, 100, 64)
    >>> whole, _ = layer(x)
    >>> _, state = layer(x[:, :99])
    >>> torch.allclose(layer(x[:, 99:], state)[0], whole[:, 99:], atol=1e-5), state.memory.nbytes
    (True, 16384)
    """

    options: ClassVar[dict[str, Any]] = {"normalize_qk": True}

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        num_key_heads: int | None = None,
        negative_eigenvalues: bool = False,
        short_convolution: int = 4,
        output_gate: bool = False,
        layer_idx: int | None = None,
        group: Any = None,
    ) -> None:
        super().__init__(
            hidden_size,
            num_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            num_key_heads=num_key_heads,
            short_convolution=short_convolution,
            output_norm=True,
            output_gate=output_gate,
            layer_idx=layer_idx,
            group=group,
        )
        self.largest_beta = 2 if negative_eigenvalues else 1
        self.beta_proj = nn.Linear(hidden_size, num_heads, bias=False)

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        beta = self.largest_beta * torch.sigmoid(linear(self.beta_proj, tokens.x))
        return super()._heads(tokens, state)._replace(beta=beta.transpose(1, 2))


class GatedDeltaNet(DeltaNet):
    """DeltaNet whose state decays by a_t before each correction, and whose output is gated.

    S_t = a_t S_{t−1} + β_t k_t (v_t − a_t S_{t−1}ᵀ k_t)ᵀ (Yang et al. 2025, Eq. 10), with the decay
    of Mamba-2: log a_t = −e^A softplus(w_a·x_t + b). It computes the same as the layers of
    Qwen3-Next, Qwen3.5 and Olmo-Hybrid in `transformers`. Values may have more heads than queries
    and keys (`num_key_heads`).

    | here | in the paper |
    |---|---|
    | S (d × M) | Sᵀ |
    | a_t, β_t | α_t, β_t |
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        num_key_heads: int | None = None,
        negative_eigenvalues: bool = False,
        short_convolution: int = 4,
        layer_idx: int | None = None,
        group: Any = None,
    ) -> None:
        super().__init__(
            hidden_size,
            num_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            num_key_heads=num_key_heads,
            negative_eigenvalues=negative_eigenvalues,
            short_convolution=short_convolution,
            output_gate=True,
            layer_idx=layer_idx,
            group=group,
        )
        self.decay_proj = nn.Linear(hidden_size, num_heads, bias=False)
        self.A_log, self.step_bias = decay_rates(num_heads), step_biases(num_heads)

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        step = linear(self.decay_proj, tokens.x) + self.step_bias.to(tokens.x.dtype)
        decay = -torch.exp(self.A_log.to(step.dtype)) * functional.softplus(step)
        return super()._heads(tokens, state)._replace(log_decay=decay.transpose(1, 2))
