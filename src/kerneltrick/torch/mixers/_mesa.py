"""Mesa: every token solves a ridge regression on the tokens so far, by conjugate gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from kerneltrick.attention import check_count
from kerneltrick.torch._implied import HeadOperator
from kerneltrick.torch._mixer import Heads, ProjectedMixer, Tensor, Tokens, linear, unit
from kerneltrick.torch._mixer_state import Memory, MixerState

LEAST = 0.25  # the smallest ridge λ; training starts at 1


class Mesa(ProjectedMixer):
    """o_t = G_tᵀ (H_t + Λ)⁻¹ q_t with sums H_t of β k kᵀ and G_t of β k vᵀ that decay by γ_t.

    That is, H_t = γ_t H_{t−1} + β_t k_t k_tᵀ and G_t = γ_t G_{t−1} + β_t k_t v_tᵀ, with ‖k‖ = 1:
    von Oswald et al. 2025, *MesaNet*, Section 3. Wᵀ = (H_t + Λ)⁻¹ G_t is the matrix that minimises
    Σ_j γ_{j+1} ⋯ γ_t β_j ‖v_j − W k_j‖² + tr(W Λ Wᵀ), so o_t = W q_t is the prediction of a ridge
    regression of values on keys, fitted to the tokens so far. By the representer theorem W is a
    combination of v_j k_jᵀ, and the layer is linear attention with the query q* = (H_t + Λ)⁻¹ q_t.

    Conjugate gradients solve for q* in `steps` steps; d steps solve any system, fewer suffice where
    Λ is large. A step needs one product H_t p, which is linear attention with the query p and the
    keys as values. G_tᵀ p comes with it, so G_tᵀ q* is summed up along the way. On ranks every
    step exchanges the sums H and G.

    | here | in the paper |
    |---|---|
    | λ ≥ 1/4, softplus of a weight per head and column | Λ |
    | `steps` | k, steps of the solver |
    | H, G: one state with keys βk and values (v, k) | H, G |
    | log γ_t = log σ(w·x_t + b), β_t = σ(w·x_t + b) | γ_t, β_t |

    >>> layer = Mesa(64, num_heads=2, steps=10)
    >>> y, state = layer(torch.randn(2, 100, 64))
    >>> y.shape, tuple(state.memory.U.shape)
    (torch.Size([2, 100, 64]), (2, 2, 32, 64))
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        head_dim: int | None = None,
        value_dim: int | None = None,
        steps: int = 30,
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
        self.steps = check_count(self._who, "steps", steps, least=1)
        self.beta_proj = nn.Linear(hidden_size, num_heads)
        self.decay_proj = nn.Linear(hidden_size, num_heads)
        start = torch.log(torch.expm1(torch.tensor(1 - LEAST)))  # softplus⁻¹
        self.ridge = nn.Parameter(start.repeat(num_heads, self.head_dim))

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        heads = super()._heads(tokens, state)
        k, x = unit(heads.k), tokens.x
        beta = torch.sigmoid(linear(self.beta_proj, x)).transpose(1, 2)[..., None]
        decay = functional.logsigmoid(linear(self.decay_proj, x)).transpose(1, 2)
        values = torch.cat([heads.v, k], dim=-1)
        return heads._replace(q=unit(heads.q), k=beta * k, v=values, log_decay=decay)

    def _mix(
        self, tokens: Tokens, heads: Heads, past: Memory | None
    ) -> tuple[Tensor, Memory | None]:
        o, _, memory = self._solve(tokens, heads, past)
        return o, memory

    def _operator(self, tokens: Tokens, heads: Heads, past: Memory | None) -> HeadOperator:
        q = self._solve(tokens, heads, past)[1]
        values = heads.v[..., : self.value_dim]
        # A state holds values and keys; without a normaliser it has no part in the weights.
        return super()._operator(tokens, heads._replace(q=q, v=values), None)

    def _solve(
        self, tokens: Tokens, heads: Heads, past: Memory | None
    ) -> tuple[Tensor, Tensor, Memory | None]:
        """The output of the heads, q*, and the new memory."""
        dtype = heads.q.dtype
        wide = torch.promote_types(dtype, torch.float32)
        q, k, v = (x.to(wide) for x in heads[:3])
        ridge = (functional.softplus(self.ridge) + LEAST).to(wide)[:, None]
        memory = None
        o, solution = torch.zeros_like(v[..., : self.value_dim]), torch.zeros_like(q)
        residual = direction = q
        size = start = (q * q).sum(-1, keepdim=True)
        for _ in range(self.steps):
            given = heads._replace(q=direction, k=k, v=v)
            product, memory = super()._mix(tokens, given, past)
            from_values, from_keys = product.split([self.value_dim, self.head_dim], dim=-1)
            product = from_keys + ridge * direction
            curvature = (direction * product).sum(-1, keepdim=True)
            going = size > torch.finfo(wide).eps ** 2 * start  # False once q* is found to rounding
            share = _ratio(size, curvature, going)
            o, solution = o + share * from_values, solution + share * direction
            residual = residual - share * product
            before, size = size, (residual * residual).sum(-1, keepdim=True)
            direction = residual + _ratio(size, before, going) * direction
        return o.to(dtype), solution.to(dtype), memory

    def _kind(self) -> str:
        return f", steps={self.steps}"


def _ratio(above: Tensor, below: Tensor, where: Tensor) -> Tensor:
    """above/below where `where` is True, else 0, also for gradients."""
    return torch.where(where, above, 0) / torch.where(where, below, 1)
