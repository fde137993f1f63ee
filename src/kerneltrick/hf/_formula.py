"""What a layer of a Hugging Face model computes, where that is not softmax(s·QKᵀ)V alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

TERMS = {  # by the keyword that hands it to the attention function
    "position_bias": "adds a position bias to its scores, not held by q, k and v",
    "softcap": "caps its scores, which is not softmax attention",
    "s_aux": "adds sinks to its scores, not held by q, k and v",
    "sliding_window": "has a sliding window of its own",
}


def place(module: Any, number: int | None) -> str:
    """How messages name a layer."""
    name = type(module).__name__
    return name if number is None else f"layer {number} ({name})"


def refused(where: str, keywords: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """What `names` say against a layer that was handed `keywords`."""
    for name in names:
        if keywords.get(name) is not None:
            return f"{where} {TERMS[name]}"
    return None


def own_formula(module: Any) -> Callable[..., Any] | None:
    """The plain attention that the model's own file defines, if it does."""
    home = sys.modules.get(type(module).__module__)
    own: Callable[..., Any] | None = getattr(home, "eager_attention_forward", None)
    return own
