"""DeltaNet and gated DeltaNet: each step corrects what a key retrieves towards its value."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from kerneltrick.torch._mixer import Heads, ProjectedMixer, Tensor, Tokens, linear
from kerneltrick.torch._mixer_state import Held, Memory, MixerState
from kerneltrick.torch.distributed._tokens import Before
from kerneltrick.torch.mixers._delta_rule import delta_rule


class DeltaNet(ProjectedMixer):
    """S_t = S_{t−1} + β_t k_t (v_t − S_{t−1}ᵀ k_t)ᵀ, o_t = S_tᵀ q_t/√d, ‖q‖ = ‖k‖ = 1.

    Yang et al. 2024 (Eq. 3), after Schlag et al. 2021. The gate β_t = σ(w_β·x_t) says how much of
    the old value of k_t is replaced by the new one. A short convolution comes before the heads and
    a norm after them. The states are not sums over tokens, so they cannot be merged.

    >>> _ = torch.manual_seed(0)
    >>> layer, x = DeltaNet(64, num_heads=2), torch.randn(2, 100, 64)
    >>> whole, _ = layer(x)
    >>> _, state = layer(x[:, :99])
    >>> torch.allclose(layer(x[:, 99:], state)[0], whole[:, 99:], atol=1e-5), state.memory.nbytes
    (True, 16384)
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        short_convolution: int = 4,
        output_gate: bool = False,
        layer_idx: int | None = None,
        group: Any = None,
    ) -> None:
        super().__init__(
            hidden_size, num_heads, head_dim=head_dim, value_dim=value_dim,
            short_convolution=short_convolution, output_norm=True, output_gate=output_gate,
            layer_idx=layer_idx, group=group,
        )  # fmt: skip
        self.beta_proj = nn.Linear(hidden_size, num_heads, bias=False)

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        heads = super()._heads(tokens, state)
        return heads._replace(
            q=unit(heads.q) * self.head_dim**-0.5,
            k=unit(heads.k),
            beta=torch.sigmoid(linear(self.beta_proj, tokens.x)).transpose(1, 2),
        )

    def _mix(self, tokens: Tokens, heads: Heads, past: Memory | None) -> tuple[Tensor, Memory]:
        assert past is None or isinstance(past, Held)
        rule = delta_rule if tokens.before is None else partial(_over_ranks, tokens.before)
        o, after = rule(
            heads.q, heads.k, heads.v, heads.beta, heads.log_decay, mask=tokens.mask,
            runs=tokens.runs, state=None if past is None else past.tensor,
        )  # fmt: skip
        return o, Held(after, tokens.start + tokens.x.shape[1])


class GatedDeltaNet(DeltaNet):
    """DeltaNet whose state decays by a_t before each correction, and whose output is gated.

    S_t = a_t S_{t−1} + β_t k_t (v_t − a_t S_{t−1}ᵀ k_t)ᵀ (Yang et al. 2025, Eq. 10), with the decay
    of Mamba-2: log a_t = −e^A softplus(w_a·x_t + b).
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
            hidden_size, num_heads, head_dim=head_dim, value_dim=value_dim,
            short_convolution=short_convolution, output_gate=True, layer_idx=layer_idx,
            group=group,
        )  # fmt: skip
        self.decay_proj = nn.Linear(hidden_size, num_heads, bias=False)
        self.A_log = nn.Parameter(torch.log(1 + 15 * torch.rand(num_heads)))
        steps = torch.exp(torch.empty(num_heads).uniform_(-6.9, -2.3))  # 0.001 to 0.1
        self.step_bias = nn.Parameter(steps + torch.log(-torch.expm1(-steps)))  # softplus⁻¹

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        step = linear(self.decay_proj, tokens.x) + self.step_bias.to(tokens.x.dtype)
        decay = -torch.exp(self.A_log.to(step.dtype)) * functional.softplus(step)
        return super()._heads(tokens, state)._replace(log_decay=decay.transpose(1, 2))


def _over_ranks(
    before: Before,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    beta: Tensor,
    log_decay: Tensor | None,
    *,
    state: Tensor | None,
    **tokens: Any,
) -> tuple[Tensor, Tensor]:
    """The delta rule for tokens that continue from those of other ranks.

    The state after these tokens is A S + B and the output is o₀ + P S, for each column of the
    values separately. B and o₀ are the results for S = 0; A and P are the results for the identity
    with values 0. All four are columns of one pass, and only A and B are sent.
    """
    d, width, dtype = k.shape[-1], v.shape[-1], v.dtype
    v = v.to(torch.promote_types(dtype, torch.float32))
    own = torch.eye(d, dtype=v.dtype, device=v.device).expand(*v.shape[:2], d, d)
    o, after = delta_rule(
        q, k, functional.pad(v, (0, d)), beta, log_decay,
        state=functional.pad(own, (width, 0)), **tokens,
    )  # fmt: skip
    (o, P), (B, A) = (x.split([width, d], dim=-1) for x in (o, after))
    S = before.carried(A, B, state)
    return (o + P @ S).to(dtype), A @ S + B


def unit(x: Tensor) -> Tensor:
    """x/‖x‖, and 0 for x = 0, which has no direction."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x / torch.where(length == 0, torch.ones_like(length), length)
