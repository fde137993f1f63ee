"""DeltaProduct: several corrections for each token."""

from __future__ import annotations

import dataclasses
from typing import Any

from torch import nn
from torch.nn import functional

from kerneltrick.attention import check_count
from kerneltrick.torch._implied import DeltaOperator
from kerneltrick.torch._mixer import Heads, Tensor, Tokens
from kerneltrick.torch._mixer_state import Memory
from kerneltrick.torch._short_convolution import ShortConvolution
from kerneltrick.torch.mixers._delta_net import GatedDeltaNet


class DeltaProduct(GatedDeltaNet):
    """S_t = S_{t,s}, S_{t,j} = S_{t,j−1} + β_{t,j} k_{t,j} (v_{t,j} − S_{t,j−1}ᵀ k_{t,j})ᵀ.

    Siems et al. 2025, *DeltaProduct* (Eq. 4). A token has `steps` = s keys, values and β, and the
    state decays once, S_{t,0} = a_t S_{t−1}, as in `GatedDeltaNet`. The transition of a token is a
    product of s matrices I − β k kᵀ, and with β up to 2 it can be any rotation in s dimensions, for
    which one step is not enough. In the delta rule, the steps are simply tokens of their own: the
    decay goes to the first and the query to the last.

    | here | in the paper |
    |---|---|
    | `steps`, s | n_h, Householder steps |
    | β up to 2 (`negative_eigenvalues`) | β in [0, 2] |
    | a_t | α_t, gated DeltaProduct |

    >>> import torch
    >>> layer = DeltaProduct(64, num_heads=2, steps=3)
    >>> y, state = layer(torch.randn(2, 100, 64))
    >>> y.shape, tuple(state.memory.tensor.shape)
    (torch.Size([2, 100, 64]), (2, 2, 32, 32))
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        steps: int = 2,
        head_dim: int | None = None,
        value_dim: int | None = None,
        negative_eigenvalues: bool = True,
        short_convolution: int = 4,
        layer_idx: int | None = None,
        group: Any = None,
    ) -> None:
        super().__init__(
            hidden_size,
            num_heads,
            head_dim=head_dim,
            value_dim=value_dim,
            negative_eigenvalues=negative_eigenvalues,
            short_convolution=short_convolution,
            layer_idx=layer_idx,
            group=group,
        )
        self.steps = check_count(self._who, "steps", steps, least=1)
        for name in ("k_proj", "v_proj", "beta_proj"):  # s of them for each head
            size = steps * getattr(self, name).out_features
            setattr(self, name, nn.Linear(hidden_size, size, bias=False))
        if self.convolution is not None:
            sizes = (x.out_features for x in (self.q_proj, self.k_proj, self.v_proj))
            self.convolution = ShortConvolution(sum(sizes), self.convolution.taps)

    def _mix(self, tokens: Tokens, heads: Heads, past: Memory | None) -> tuple[Tensor, Memory]:
        o, memory = super()._mix(*self._unrolled(tokens, heads), past)
        return o[:, :, self.steps - 1 :: self.steps], memory

    def _operator(self, tokens: Tokens, heads: Heads, past: Memory | None) -> DeltaOperator:
        return super()._operator(*self._unrolled(tokens, heads), past)

    def _unrolled(self, tokens: Tokens, heads: Heads) -> tuple[Tokens, Heads]:
        """Each step as a token of its own."""
        s = self.steps
        assert heads.beta is not None
        assert heads.log_decay is not None
        # (batch, heads, n, s · width) → (batch, heads, n · s, width)
        k, v = (x.unflatten(-1, (s, -1)).flatten(2, 3) for x in (heads.k, heads.v))
        beta = heads.beta.unflatten(1, (-1, s)).transpose(2, 3).flatten(2, 3)
        q = functional.pad(heads.q[:, :, :, None], (0, 0, s - 1, 0)).flatten(2, 3)
        log_decay = functional.pad(heads.log_decay[..., None], (0, s - 1)).flatten(2, 3)
        mask, ids = (
            None if x is None else x.repeat_interleave(s, dim=-1)
            for x in (tokens.mask, tokens.segment_ids)
        )
        return (
            dataclasses.replace(tokens, mask=mask, segment_ids=ids),
            heads._replace(q=q, k=k, v=v, beta=beta, log_decay=log_decay),
        )

    def _kind(self) -> str:
        return f", steps={self.steps}"
