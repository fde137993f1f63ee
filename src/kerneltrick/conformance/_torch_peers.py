"""PyTorch's own softmax attention."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch.nn import functional

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


def scaled_dot_product_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    segment_ids: Tensor | None = None,
    state: Any = None,
) -> tuple[Tensor, Any]:
    """`is_causal`, or `attn_mask` where more is asked. The state is all keys and values."""
    if state is not None:
        k, v = torch.cat([state[0], k], dim=2), torch.cat([state[1], v], dim=2)
    if mask is None and segment_ids is None and state is None:
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True), (k, v)
    n, total = q.shape[2], k.shape[2]
    seen = torch.ones(n, total, dtype=torch.bool).tril(total - n)[None, None]
    if mask is not None:
        seen = seen & mask[:, None, None]
    if segment_ids is not None:
        seen = seen & (segment_ids[:, None, :, None] == segment_ids[:, None, None])
    return functional.scaled_dot_product_attention(q, k, v, attn_mask=seen), (k, v)


def multihead_attention(q: Tensor, k: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """`nn.MultiheadAttention` with projections that change nothing."""
    _, heads, n, d = q.shape
    layer = torch.nn.MultiheadAttention(heads * d, heads, bias=False, batch_first=True).eval()
    one = torch.eye(heads * d, dtype=q.dtype)
    layer.to(q.dtype).requires_grad_(False)
    layer.in_proj_weight.copy_(torch.cat([one] * 3))
    layer.out_proj.weight.copy_(one)
    merged = [x.transpose(1, 2).flatten(2) for x in (q, k, v)]
    later = torch.ones(n, n, dtype=torch.bool).triu(1)
    pads = None if mask is None else ~mask
    o, _ = layer(
        *merged,
        key_padding_mask=pads,
        attn_mask=later,
        is_causal=pads is None,
        need_weights=False,
    )
    return o.unflatten(-1, (heads, d)).transpose(1, 2)
