"""Lightning attention of MiniMax: linear attention with a fixed decay for each head."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch.nn import functional

from kerneltrick.hf._packed import segments
from kerneltrick.hf._state_space import decayed_attention
from kerneltrick.hf._watch import is_watched, show
from kerneltrick.torch import SUM, LinearOperator

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


def lightning_attention(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: tuple[Tensor, Tensor],
    attention_mask: Tensor | None,
    past_key_values: Any = None,
    **more: Any,
) -> tuple[Tensor, Tensor]:
    """`MiniMaxLightningAttention.forward`, without its loops over blocks and over tokens."""
    batch, n, _ = hidden_states.shape
    heads, wide = self.num_attention_heads, torch.promote_types(hidden_states.dtype, torch.float32)
    qkv = self.act_fn(self.qkv_proj(hidden_states))
    if attention_mask is not None:
        qkv = (qkv * attention_mask[:, :, None]).to(qkv.dtype)
    qkv = qkv.to(wide).unflatten(-1, (heads, -1)).transpose(1, 2)
    q, k, v = qkv.split(self.head_dim, dim=-1)
    before = None if past_key_values is None else past_key_values.get_linear_cache(self.layer_idx)
    slope = -self.slope_rate.to(wide).view(heads, 1)
    decay = slope.expand(batch, heads, n)
    if is_watched():
        show(LinearOperator(q, k, v, "identity", {**SUM, "log_decay": decay}))
    output, after = decayed_attention(q, k, v, decay, segments(more, batch, n), before, True)
    output = self.norm(output.transpose(1, 2).flatten(2).to(hidden_states.dtype))
    output = self.out_proj(functional.sigmoid(self.output_gate(hidden_states)) * output)
    after = after.to(hidden_states.dtype)
    if past_key_values is not None:
        past_key_values.set_linear_cache(self.layer_idx, after)
    return output, after
