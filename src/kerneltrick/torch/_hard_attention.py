"""A layer of attention that picks a single token."""

from __future__ import annotations

import dataclasses
from typing import Any, TypeAlias

import torch

from kerneltrick.attention import Substitute, hard_attention
from kerneltrick.torch._attention import Attention
from kerneltrick.torch._implied import Implied, Rows, shared
from kerneltrick.torch._mixer import Heads, Tokens
from kerneltrick.torch._mixer_state import Memory

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


@dataclasses.dataclass(frozen=True, eq=False)
class Picked:
    """`hard_attention`, whose weights are 1 at the chosen token and 0 elsewhere."""

    found: Implied

    def implied(self, rows: Rows) -> Implied:
        weights, values = self.found
        return Implied(weights[..., torch.as_tensor(rows, device=weights.device), :], values)


class HardAttention(Attention):
    """Each head returns the value whose key has the largest q·k: `Attention` at temperature 0.

    The choice is piecewise constant, so the derivative of y by W_q and W_k is 0 almost everywhere.
    No gradient reaches them (it stays None) and they never learn; W_v and W_o do. A `substitute`
    gradient makes them learn: see `kerneltrick.hard_attention`. The layer keeps no state, so it
    needs whole texts.

    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> layer, x = HardAttention(16, num_heads=2), torch.randn(1, 10, 16)
    >>> layer(x)[0].sum().backward()
    >>> layer.q_proj.weight.grad, layer.k_proj.weight.grad, bool(layer.v_proj.weight.grad.any())
    (None, None, True)
    """

    spreads = False

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        *,
        substitute: Substitute | None = None,
        temperature: float = 1.0,
        seed: int = 0,
        **options: Any,
    ) -> None:
        """`options` are those of `Attention`, except for the feature map, window, sinks and far."""
        known = {"feature_map", "window", "sinks", "far"} & options.keys()
        if known:
            raise TypeError(f"HardAttention has no feature map: leave out {', '.join(known)}")
        super().__init__(hidden_size, num_heads, feature_map="softmax", **options)
        self.substitute, self.temperature, self.seed = substitute, temperature, seed

    def _mix(self, tokens: Tokens, heads: Heads, past: Memory | None) -> tuple[Tensor, None]:
        return self._hard(tokens, heads, False), None

    def _operator(self, tokens: Tokens, heads: Heads, past: Memory | None) -> Picked:
        weights = self._hard(tokens, heads, True)[1]
        return Picked(Implied(weights, shared(heads.v, weights.shape[1])))

    def _check_state(self, state: Any) -> None:
        raise ValueError("HardAttention keeps no state: give it whole texts")

    def _hard(self, tokens: Tokens, heads: Heads, return_weights: bool) -> Any:
        if tokens.runs is not None:
            raise ValueError("HardAttention does not take packed texts: give a batch with a mask")
        return hard_attention(
            heads.q,
            heads.k,
            heads.v,
            causal=self.causal,
            substitute=self.substitute,
            temperature=self.temperature,
            seed=self.seed,
            mask=tokens.mask,
            query_mask=None if self.causal else tokens.mask,
            return_weights=return_weights,
            on_zero=self.on_zero,
        )
