"""RWKV-7: the delta rule that erases with other vectors than it writes with."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional

from kerneltrick.torch._mixer import (
    Heads,
    Tensor,
    Tokens,
    head_width,
    joined,
    linear,
    split,
    unit,
)
from kerneltrick.torch._mixer_state import MixerState
from kerneltrick.torch._short_convolution import previous
from kerneltrick.torch.mixers._delta_rule import DeltaMixer

RANK = 32  # of the projections to decays, learning rates and the gate
FASTEST = math.exp(-0.5)  # no decay is faster than e^{−0.61}, so that dividing by it is safe
NAMES = ("r", "w", "k", "v", "a", "g")


class RWKV7(DeltaMixer):
    """S_t = diag(w_t) S_{t−1} − (a_t ⊙ κ_t)(κ_tᵀ S_{t−1}) + k̃_t v_tᵀ, o_t = S_tᵀ r_t.

    Peng et al. 2025, *RWKV-7 "Goose"* (Eqs. 3 to 18). The key that is removed, κ = ξ ⊙ k at length
    1, differs from the key that is written, k̃ = k ⊙ (1 + (a − 1) ⊙ α), and a_t is a learning rate
    for each feature. The rule reads before the decay, so it gets `read` = κ/w. Projections see a
    mixture of each token and the one before it; the token itself adds (r·(ρ ⊙ k̃)) v after the norm.
    The mixture of values with those of the first layer is left out: a mixer sees one layer only.

    | here | in the paper |
    |---|---|
    | S (d × M), o = Sᵀr | wkvᵀ, o = wkv r |
    | log w_t = −e^{−1/2} σ(…), `log_decay` | w_t, Eq. 12 |
    | a_t ⊙ κ_t, `erase`; κ_t/w_t, `read` | a_t ⊙ κ̂_t; κ̂_t |
    | ξ, α, ρ: `removed`, `replaced`, `bonus` | ξ, α, ρ |

    >>> layer = RWKV7(64, num_heads=2)
    >>> y, state = layer(torch.randn(2, 100, 64))
    >>> y.shape, tuple(state.memory.tensor.shape)
    (torch.Size([2, 100, 64]), (2, 2, 32, 32))
    """

    options: ClassVar[dict[str, Any]] = {"scale": 1.0}

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
        self.shift = nn.Parameter((1 - along**0.5).repeat(len(NAMES), 1))  # μ of r, w, k, v, a, g
        self.r_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(hidden_size, hidden_size, bias=False) for _ in range(4)
        )
        self.w_down, self.a_down, self.g_down = (
            nn.Linear(hidden_size, RANK, bias=False) for _ in range(3)
        )
        self.w_up, self.a_up = (nn.Linear(RANK, hidden_size) for _ in range(2))
        self.g_up = nn.Linear(RANK, hidden_size, bias=False)
        with torch.no_grad():
            self.w_up.bias.copy_(-5.5 + 6 * along)  # half-lives from 300 tokens to 2
        self.removed = nn.Parameter(torch.full((hidden_size,), 0.85))
        self.replaced = nn.Parameter(torch.ones(hidden_size))
        self.bonus = nn.Parameter(torch.zeros(num_heads, self.head_dim))
        self.norm = nn.GroupNorm(num_heads, hidden_size, eps=self.head_dim * 1e-5)

    def _heads(self, tokens: Tokens, state: MixerState | None) -> Heads:
        x, heads = tokens.x, self.num_heads
        tail = tokens.tail(x, None if state is None else state.tail, 1)
        earlier, tail = previous(x, tail, tokens.mask, tokens.runs)
        shift = self.shift.to(x.dtype)
        r, w, k, v, a, g = (x + (earlier - x) * shift[i] for i in range(len(NAMES)))
        r, k, v = linear(self.r_proj, r), linear(self.k_proj, k), linear(self.v_proj, v)
        w = linear(self.w_up, torch.tanh(linear(self.w_down, w)))
        log_decay = split(-FASTEST * torch.sigmoid(w), heads)
        a = torch.sigmoid(linear(self.a_up, linear(self.a_down, a)))
        kappa = unit(split(k * self.removed.to(k.dtype), heads))
        k = k * (1 + (a - 1) * self.replaced.to(k.dtype))
        return Heads(
            q=split(r, heads),
            k=split(k, heads),
            v=split(v, heads),
            tail=tail,
            counted=tokens.counted()[1],
            gate=linear(self.g_up, torch.sigmoid(linear(self.g_down, g))),
            log_decay=log_decay,
            erase=split(a, heads) * kappa,
            read=kappa * torch.exp(-log_decay),
        )

    def _combine(self, heads: Heads, o: Tensor) -> Tensor:
        weight, bias = self.norm.weight.to(o.dtype), self.norm.bias.to(o.dtype)
        normed = functional.layer_norm(o, o.shape[-1:], eps=self.norm.eps)  # each head by itself
        flat = joined(normed) * weight + bias
        own = (heads.q * self.bonus.to(o.dtype)[:, None] * heads.k).sum(-1, keepdim=True) * heads.v
        return linear(self.o_proj, (flat + joined(own)) * heads.gate)
