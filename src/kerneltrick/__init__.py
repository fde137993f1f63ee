"""Attention in linear time, with proof: feature maps, linear attention, and what they cost."""

import importlib
from typing import Any

from kerneltrick import maps
from kerneltrick._version import __version__
from kerneltrick.attention import (
    MultiHeadAttention,
    State,
    VanishingNormalizerError,
    attention_weights,
    hard_attention,
    kernel_attention,
    linear_attention,
    softmax_attention,
)

__all__ = [
    "MultiHeadAttention",
    "State",
    "VanishingNormalizerError",
    "__version__",
    "attention_weights",
    "hard_attention",
    "kernel_attention",
    "linear_attention",
    "maps",
    "softmax_attention",
]

_ROOMS = ("analysis", "hf", "labs", "report")  # loaded when first asked for


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"kerneltrick.{name}")
    raise AttributeError(f"module 'kerneltrick' has no attribute {name!r}")
