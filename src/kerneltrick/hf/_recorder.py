"""An attention function for transformers that writes down what it is given, then attends.

Models that route through transformers' attention interface look their attention function up by
name and call it with q, k (after rotary, before heads are repeated), v, scaling and mask. So one
function serves every such model.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from kerneltrick.hf._formula import own_formula, place, refused

NAME = "kerneltrick_capture"
ROWS = 64  # of each layer are compared with the model's own formula
TOLERANCE = 1e-3  # of the largest output; float32 over long rows agrees to 1e-5


class CaptureError(ValueError):
    """The attention of this model cannot be captured; the message says why."""


class Call(NamedTuple):
    """What one layer gave to the attention function."""

    q: NDArray[np.float32]  # (H_q, n, d)
    k: NDArray[np.float32]
    v: NDArray[np.float32]
    scale: float
    causal: bool


@dataclasses.dataclass
class Recording:
    """The calls of one forward pass, by layer number."""

    tokens: int
    wanted: frozenset[int] | None  # None: every layer
    mask: Any  # (n,) bool tensor, True = a real token
    calls: dict[int, Call] = dataclasses.field(default_factory=dict)
    seen: list[int] = dataclasses.field(default_factory=list)


_current: contextvars.ContextVar[Recording] = contextvars.ContextVar("recording")


def register() -> None:
    """Make `attn_implementation=NAME` known to transformers."""
    AttentionInterface.register(NAME, _attend)
    # Without a mask function of its own no mask would be made at all, not even a causal one.
    AttentionMaskInterface.register(NAME, sdpa_mask)


@contextmanager
def recording(target: Recording) -> Iterator[None]:
    token = _current.set(target)
    try:
        yield
    finally:
        _current.reset(token)


def _attend(
    module: Any,
    query: Any,
    key: Any,
    value: Any,
    attention_mask: Any,
    scaling: float | None = None,
    **keywords: Any,
) -> Any:
    target = _current.get()
    number = getattr(module, "layer_idx", None)
    if not isinstance(number, int):
        number = len(target.seen)
    if number in target.seen:
        raise CaptureError(f"{type(module).__name__} ran twice as layer {number}")
    target.seen.append(number)
    where = place(module, number)
    if (
        query.ndim != 4
        or query.shape[0] != 1
        or not (query.shape[2] == key.shape[2] == value.shape[2] == target.tokens)
    ):
        raise CaptureError(
            f"{where} attends from {tuple(query.shape)} to {tuple(key.shape)}; expected "
            f"(1, heads, {target.tokens}, d), self-attention over the text"
        )
    wanted = target.wanted is None or number in target.wanted
    # sdpa adds a position bias by itself, and would leave the others out.
    terms = ("position_bias", "softcap", "s_aux") if wanted else ("softcap", "s_aux")
    reason = refused(where, keywords, terms)
    if reason is not None:
        raise CaptureError(reason)
    outcome = sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, **keywords
    )
    if wanted:
        scale = float(query.shape[-1] ** -0.5 if scaling is None else scaling)
        causal = _is_causal(module, attention_mask, keywords.get("is_causal"))
        q, k, v = _floats(query), _floats(key), _floats(value)
        target.calls[number] = Call(q, k, v, scale, causal)
        rows = slice(max(0, target.tokens - ROWS), target.tokens)
        own = own_formula(module)
        theirs = outcome[0][:, rows]
        if own is not None:
            mask = _additive(attention_mask, query, causal, rows)
            theirs = own(module, query[:, :, rows], key, value, mask, scaling=scale, **keywords)[0]
        ours = _plain(query[:, :, rows], key, value, scale, causal, rows, target.mask)
        _check_rows(where, causal, ours, theirs, target.mask[rows])
    return outcome


def _floats(x: Any) -> NDArray[np.float32]:
    array: NDArray[np.float32] = x[0].float().cpu().numpy().copy()
    return array


def _is_causal(module: Any, mask: Any, flag: bool | None) -> bool:
    """As sdpa does: a mask decides if there is one, else the argument, else the module."""
    if mask is None:
        return bool(getattr(module, "is_causal", True) if flag is None else flag)
    first = mask[0, 0, 0]  # what the first token sees
    seen = first if first.dtype.is_floating_point is False else first > -1e4
    return not bool(seen[1:].any())


def _additive(mask: Any, query: Any, causal: bool, rows: slice) -> Any:
    """The rows of a mask as a term of the scores, which is what a model's own formula takes."""
    if mask is None:
        mask = torch.ones((1, 1, rows.stop - rows.start, query.shape[2]), dtype=torch.bool)
        mask = mask.tril(rows.start) if causal else mask
    else:
        mask = mask[:, :, rows]
    if mask.dtype != torch.bool:
        return mask
    return torch.where(mask, 0.0, torch.finfo(query.dtype).min).to(query.dtype)


def _plain(
    query: Any, key: Any, value: Any, scale: float, causal: bool, rows: slice, real: Any
) -> Any:
    """softmax(s·QKᵀ)V of some rows, (1, rows, H_q, M)."""
    groups = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
    allowed = real.expand(rows.stop - rows.start, -1)
    if causal:
        allowed = allowed.tril(rows.start)
    scores = (query @ key.mT) * scale
    return (scores.masked_fill(~allowed, -torch.inf).softmax(-1) @ value).transpose(1, 2)


def _check_rows(where: str, causal: bool, ours: Any, theirs: Any, real: Any) -> None:
    ours, theirs = ours[:, real], theirs.reshape(ours.shape)[:, real]
    if ours.numel() == 0 or not bool(torch.isfinite(ours).all()):
        return  # NaN in the model itself: `sanitized` names its layers and heads
    largest, error = float(ours.abs().max()), float((ours - theirs).abs().max())
    if not error <= TOLERANCE * largest:
        kind = "causal" if causal else "full"
        raise CaptureError(
            f"{where} does not compute {kind} softmax attention of q, k and v: outputs differ by "
            f"{error:.1e} of {largest:.1e} (a window shorter than the text, or scores that are "
            "changed); choose other layers or max_tokens"
        )
