"""The attention function that capture uses: it records what it is given, then attends by softmax.

One function serves every model that uses transformers' attention interface.
"""

from __future__ import annotations

import contextvars
import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from kerneltrick.hf._call import check_terms, layer_name, read_call
from kerneltrick.hf._mask import AttentionError
from kerneltrick.hf._names import add_function

NAME = "kerneltrick_capture"  # names that begin with "kerneltrick" are checked by `_names`
NOT_IN_SDPA = ("softcap", "s_aux")  # terms that softmax attention here would leave out
NOT_IN_QKV = ("position_bias", *NOT_IN_SDPA)  # terms that q, k and v would not hold


class CaptureError(ValueError):
    """The attention of this model cannot be captured; the message says why."""


class Recorded(NamedTuple):
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
    wanted: frozenset[int] | None  # the layers to record; None means all
    mask: Any  # (n,) bool tensor, True for real tokens
    calls: dict[int, Recorded] = dataclasses.field(default_factory=dict)
    seen: list[int] = dataclasses.field(default_factory=list)


_current: contextvars.ContextVar[Recording] = contextvars.ContextVar("recording")


def register() -> None:
    """Make `attn_implementation=NAME` known to transformers."""
    add_function(NAME, _recording_attention, sdpa_mask)


@contextmanager
def recording(target: Recording) -> Iterator[None]:
    """Record all calls into `target`."""
    token = _current.set(target)
    try:
        yield
    finally:
        _current.reset(token)


def _recording_attention(
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
    where = layer_name(module, number)
    if (
        query.ndim != 4
        or query.shape[0] != 1
        or not (query.shape[2] == key.shape[2] == value.shape[2] == target.tokens)
    ):
        raise CaptureError(
            f"{where} attends from {tuple(query.shape)} to {tuple(key.shape)}; expected "
            f"(1, heads, {target.tokens}, d), self-attention over the text"
        )
    if target.wanted is None or number in target.wanted:
        target.calls[number] = _read(
            where, module, (query, key, value), attention_mask, scaling, keywords
        )
    else:
        check_terms(where, keywords, NOT_IN_SDPA)
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, scaling=scaling, **keywords
    )


def _read(
    where: str,
    module: Any,
    arrays: tuple[Any, Any, Any],
    mask: Any,
    scaling: float | None,
    keywords: dict[str, Any],
) -> Recorded:
    check_terms(where, keywords, NOT_IN_QKV)
    more = {name: x for name, x in keywords.items() if name != "is_causal"}
    try:
        call = read_call(where, module, arrays, mask, scaling, keywords.get("is_causal"), more)
    except AttentionError as error:
        raise CaptureError(f"{error}; choose other layers or max_tokens") from None
    if call.tokens.segment_ids is not None:
        raise CaptureError(f"{where} attends within packed sequences; capture one at a time")
    q, k, v = (x[0].float().cpu().numpy().copy() for x in arrays)
    return Recorded(q, k, v, call.scale, call.tokens.causal)
