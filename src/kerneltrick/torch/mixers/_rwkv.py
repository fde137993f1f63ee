"""RWKV, the time mixing of version 6: a decay for each token and feature, and a bonus."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn import functional

from kerneltrick.attention import attention_weights
from kerneltrick.torch._implied import Implied, LinearOperator, Rows, with_own
from kerneltrick.torch._mixer import (
    Heads,
    Mixer,
    Tokens,
    head_width,
    joined,
    linear,
    split,
)
from kerneltrick.torch._mixer_state import Memory, MixerState
from kerneltrick.torch._short_convolution import previous

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow

SHIFT_RANK, DECAY_RANK = 32, 64
NAMES = ("w", "k", "v", "r", "g")


@dataclasses.dataclass(frozen=True, eq=False)
class Late(LinearOperator):
    """Linear attention whose column j holds the key of the token before j, its number from 1."""

    late: Tensor = None  # (batch, n), 0 where no token comes before

    def implied(self, rows: Rows) -> Implied:
        made = attention_weights(self.q, self.k, self.feature_map, rows=rows, **self.options)
        weights = torch.zeros_like(functional.pad(made, (1, 0)))
        weights = weights.scatter_add(-1, self.late[:, None, None].expand_as(made), made)[..., 1:]
        return Implied(with_own(weights, self.own, rows, self.options["mask"]), self.v)


class RWKV(Mixer):
    """S_t = diag(w_t) S_{t−1} + k_t v_tᵀ, o_t = (S_{t−1} + diag(u) k_t v_tᵀ)ᵀ r_t.

    This is version 6, Finch (Peng et al. 2024, Section 4.2). The projections see a mixture of each
    token and the one before it, with learned weights that depend on both. The token itself gets the
    bonus u.

    >>> layer = RWKV(64, num_heads=2)
    >>> y, state = layer(torch.randn(2, 100, 64))
    >>> y.shape, tuple(state.memory.U.shape)
    (torch.Size([2, 100, 64]), (2, 2, 32, 32))
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        layer_idx: int | None = None,
        group: Any = None,
    ) -> None:
        super().__init__(hidden_size, num_heads, layer_idx, group)
        self.head_dim = head_width(hidden_size, num_heads)
        along = torch.arange(hidden_size) / hidden_size
        self.shift_mix = nn.Parameter(along.clone())  # μ_x
        self.shift_bias = nn.Parameter(along.repeat(len(NAMES), 1))  # λ of w, k, v, r, g
        self.shift_down = nn.Linear(hidden_size, SHIFT_RANK * len(NAMES), bias=False)
        self.shift_up = nn.Parameter(0.01 * torch.randn(len(NAMES), SHIFT_RANK, hidden_size))
        self.decay_down = nn.Linear(hidden_size, DECAY_RANK, bias=False)
        self.decay_up = nn.Linear(DECAY_RANK, hidden_size)
        with torch.no_grad():  # half-lives from 500 tokens to 2
            self.decay_up.bias.copy_(-6 + 5 * along)
        self.bonus = nn.Parameter(torch.zeros(num_heads, self.head_dim))  # u
        self.k_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.v_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.r_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.g_proj = nn.Linear(hidden_size, hidden_size, bias=False)
        self.norm = nn.GroupNorm(num_heads, hidden_size, eps=1e-5)
        self.o_proj = nn.Linear(hidden_size, hidden_size, bias=False)

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        x, size = tokens.x, self.hidden_size
        tail: Any = None if state is None else state.tail
        tails = (None, None) if tail is None else tail.split((size, 3 * size), dim=-1)
        previous, x_tail = self._previous(tokens, x, tails[0])
        w, k, v, r, gate = self._shifted(x, previous - x)
        decay = linear(self.decay_up, torch.tanh(linear(self.decay_down, w)))  # Eq. 17
        k, v, r = linear(self.k_proj, k), linear(self.v_proj, v), linear(self.r_proj, r)
        # Eq. 19 reads S before the token is added, that is, after the previous token. So keys,
        # values and decays are shifted by one token, with 0 before the first.
        log_decay = -torch.exp(decay)  # Eq. 18
        late, late_tail = self._previous(tokens, torch.cat([k, v, log_decay], dim=-1), tails[1])
        k, v, r = (split(part, self.num_heads) for part in (k, v, r))
        own = (r * self.bonus.to(r.dtype)[:, None] * k).sum(-1, keepdim=True)
        late_k, late_v, late_decay = (
            split(part, self.num_heads) for part in late.split(size, dim=-1)
        )
        return Heads(
            q=r,
            k=late_k,
            v=late_v,
            tail=torch.cat([x_tail, late_tail], dim=-1),
            counted=tokens.counted()[1],
            gate=linear(self.g_proj, gate),
            log_decay=late_decay,
            own=own,
            own_v=v,
        )

    def _operator(self, tokens: Tokens, heads: Heads, past: Memory | None) -> Late:
        feature_map, options = self._attention(tokens, heads)
        options["state"] = past
        numbers = torch.arange(1.0, tokens.x.shape[1] + 1, device=tokens.x.device)
        numbers = numbers.expand(tokens.x.shape[:2])[..., None]
        late, _ = previous(numbers, None, tokens.mask, tokens.runs)
        return Late(
            heads.q, heads.k, heads.own_v, feature_map, options, heads.own, late[..., 0].long()
        )

    def _previous(self, tokens: Tokens, x: Tensor, tail: Tensor | None) -> tuple[Tensor, Tensor]:
        """x of the token before each token, and the tail after x."""
        return previous(x, tokens.tail(x, tail, 1), tokens.mask, tokens.runs)

    def _shifted(self, x: Tensor, delta: Tensor) -> tuple[Tensor, ...]:
        """Eqs. 14 and 15: x + δ ⊙ (λ + tanh(zA)B), z = x + δ ⊙ μ, δ = x_{t−1} − x_t, five times."""
        mixed = torch.tanh(linear(self.shift_down, x + delta * self.shift_mix.to(x.dtype)))
        mixed = mixed.unflatten(-1, (len(NAMES), SHIFT_RANK))
        shares = torch.einsum("bnpr,prh->pbnh", mixed, self.shift_up.to(x.dtype))
        shares = shares + self.shift_bias.to(x.dtype)[:, None, None]
        return tuple(x + delta * share for share in shares)

    def _combine(self, heads: Heads, o: Tensor) -> Tensor:
        weight, bias = self.norm.weight.to(o.dtype), self.norm.bias.to(o.dtype)
        normed = functional.layer_norm(o, o.shape[-1:], eps=self.norm.eps)  # each head by itself
        flat = joined(normed) * weight + bias
        return linear(self.o_proj, flat * functional.silu(heads.gate))  # Eq. 20
