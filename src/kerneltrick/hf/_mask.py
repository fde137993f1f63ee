"""Masks of transformers, and the tokens that they keep: causal or full attention, and padding.

Every name of an attention function has a mask function, because without one transformers passes no
mask at all. Ours passes n numbers instead of n² where the pattern is known: int8 for causal
attention, bool for full. Masks that were made elsewhere, (batch, 1 or heads, n_q, n_k), are read
for the same pattern. Masks that are neither causal nor full are refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from transformers import masking_utils

UNKNOWN = (
    "has a mask that is neither causal nor full (a sliding window shorter than the text, or a "
    "prefix that all tokens see)"
)


class AttentionError(ValueError):
    """This model cannot attend through a feature map; the message says why."""


class TokenMask(NamedTuple):
    """What a mask says about the tokens of a call."""

    causal: bool
    keep: Any = None  # (batch, n_k) bool; None keeps all tokens
    segment_ids: Any = None  # (batch, n_k); None means one sequence in each row
    positions: Any = None  # (batch, n_k), for maps that use them; None counts the tokens

    def stretch(self, at: slice) -> TokenMask:
        """Return the same for some of the tokens."""
        return self.each(lambda x: x[:, at])

    def each(self, change: Callable[[Any], Any]) -> TokenMask:
        """Return the same with a change to each of its tensors."""
        parts = (None if x is None else change(x) for x in self[1:])
        return TokenMask(self.causal, *parts)


def kept_positions(keep: Any) -> Any:
    """Return the positions of tokens (batch, n) among those of their row that are kept."""
    return (keep.long().cumsum(dim=-1) - 1).clamp(min=0)


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: Any = 0,
    kv_offset: int = 0,
    mask_function: Any = masking_utils.causal_mask_function,
    attention_mask: Any = None,
    device: Any = "cpu",
    **keywords: Any,
) -> Any:
    """Return the keys to keep, (batch, n_k), or the whole pattern where it is not a known one."""
    if kv_offset + kv_length != int(q_offset) + q_length or kv_offset not in (0, int(q_offset)):
        raise AttentionError(
            f"the cache returns tokens {kv_offset}:{kv_offset + kv_length} for queries "
            f"{int(q_offset)}:{int(q_offset) + q_length}; use kerneltrick.hf.Cache()"
        )
    known = {
        masking_utils.causal_mask_function: torch.int8,
        masking_utils.bidirectional_mask_function: torch.bool,
    }
    if mask_function not in known:
        return _other_mask(
            batch_size,
            q_length,
            kv_length,
            int(q_offset),
            kv_offset,
            mask_function,
            attention_mask,
            device=device,
            **keywords,
        )
    keep = torch.ones((batch_size, kv_length), dtype=torch.bool, device=device)
    if attention_mask is not None:
        given = masking_utils.prepare_padding_mask(attention_mask, kv_length, kv_offset)
        keep = given[:, kv_offset : kv_offset + kv_length].to(device).expand(batch_size, -1)
    return keep.to(known[mask_function])


def _other_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int,
    kv_offset: int,
    mask_function: Any,
    attention_mask: Any,
    local_size: int | None = None,
    config: Any = None,
    **keywords: Any,
) -> Any:
    """Return the mask (batch, 1, n_q, n_k) of another pattern, such as packed sequences."""
    name = getattr(config, "model_type", "the model")
    if local_size is not None:
        raise AttentionError(f"{name} has a sliding window of its own ({local_size} tokens)")
    keywords.update(allow_is_causal_skip=False, allow_is_bidirectional_skip=False)
    whole = masking_utils.sdpa_mask(
        batch_size,
        q_length,
        kv_offset + kv_length,
        q_offset,
        0,
        mask_function,
        attention_mask,
        **keywords,
    )
    if not kv_offset:
        return whole
    past, mask = whole[..., :kv_offset], whole[..., kv_offset:]
    seen = True if attention_mask is None else attention_mask[:, None, None, :kv_offset]
    if bool((past != seen).any()):
        raise AttentionError(
            f"{name} masks earlier tokens, which a recurrent state cannot represent"
        )
    return mask


def read_mask(where: str, mask: Any, n_q: int, n_k: int, causal: bool) -> TokenMask:
    """Return what `mask` says. `causal` is what the model says, for when the mask leaves it open.

    where: the name of the layer, for messages.
    """
    if mask is None:
        return TokenMask(causal)
    if mask.ndim == 2 and mask.shape[1] == n_k and mask.dtype in (torch.int8, torch.bool):
        keep = mask.to(torch.bool)
        return TokenMask(mask.dtype == torch.int8, None if _keeps_all(keep) else keep)
    if mask.ndim != 4 or mask.shape[2] not in (1, n_q) or mask.shape[3] != n_k:
        raise AttentionError(
            f"{where} has a mask {tuple(mask.shape)} for {n_q} queries and {n_k} keys; expected "
            f"(batch, 1, {n_q}, {n_k})"
        )
    return _read_pattern(where, _allowed(where, mask).expand(-1, n_q, -1), causal)


def _keeps_all(keep: Any) -> bool:
    """Return whether a mask is known to keep all tokens; while code is compiled, nothing is."""
    return not torch.compiler.is_compiling() and bool(keep.all())


def _allowed(where: str, mask: Any) -> Any:
    """Return (batch, n_q, n_k) bool for a mask that may be per head and added to the scores."""
    allowed = mask
    if mask.dtype != torch.bool:
        allowed = mask > torch.finfo(mask.dtype).min / 2
        if bool((mask[allowed] != 0).any()):
            raise AttentionError(
                f"{where} adds a bias to its scores (in its mask), which q, k and v do not contain"
            )
    if allowed.shape[1] > 1 and bool((allowed != allowed[:, :1]).any()):
        raise AttentionError(f"{where} has different masks for its heads")
    return allowed[:, 0]


def _read_pattern(where: str, allowed: Any, causal: bool) -> TokenMask:
    """Find out whether a pattern is full, causal or packed. Rows of padding do not count."""
    n_q, n_k = allowed.shape[1:]
    keep = allowed.any(dim=1)
    real = torch.ones_like(keep[:, :n_q]) if n_q > n_k else keep[:, n_k - n_q :]
    kept = None if _keeps_all(keep) else keep

    def misfits(pattern: Any) -> Any:
        return ((allowed != (pattern & keep[:, None])) & real[..., None]).any()

    def segments() -> Any:
        first = torch.where(keep, allowed.to(torch.int8).argmax(dim=-1), 0)
        return first.cummax(dim=-1).values  # padding belongs to the sequence before it

    index = torch.arange(n_k, device=allowed.device)
    past = index <= index[n_k - n_q :, None] if n_q <= n_k else None
    if torch.compiler.is_compiling() and causal and n_q == n_k:
        # Compiled code cannot choose by values. A causal text is a packed text of one sequence.
        segment = segments()
        together = past & (segment[..., None] == segment[:, None])
        torch._assert_async(~misfits(together), f"{where} {UNKNOWN}")
        return TokenMask(True, keep, segment)
    # A single token fits both patterns, so the model's own word comes first.
    patterns = {True: past, False: torch.ones_like(allowed)}
    for kind in (causal, not causal):
        if patterns[kind] is not None and not bool(misfits(patterns[kind])):
            return TokenMask(kind, kept)
    if n_q == n_k:
        segment = segments()
        if not bool(misfits(past & (segment[..., None] == segment[:, None]))):
            return TokenMask(True, kept, segment)
    raise AttentionError(f"{where} {UNKNOWN}")
