"""Attention in linear time, with proof: feature maps, linear attention, and what they cost."""

import importlib
from typing import Any

from kerneltrick import maps
from kerneltrick._version import __version__
from kerneltrick.attention import (
    Decoder,
    Dial,
    Far,
    MultiHeadAttention,
    State,
    VanishingNormalizerError,
    attention_weights,
    hard_attention,
    kernel_attention,
    linear_attention,
    softmax_attention,
)
from kerneltrick.engines import set_num_threads, show_config

__all__ = [
    "Decoder",
    "Dial",
    "Far",
    "MultiHeadAttention",
    "State",
    "VanishingNormalizerError",
    "__version__",
    "attention_weights",
    "hard_attention",
    "kernel_attention",
    "linear_attention",
    "maps",
    "set_num_threads",
    "show_config",
    "softmax_attention",
]

_ROOMS = (
    "analysis",
    "costs",
    "hf",
    "kernels",
    "labs",
    "proofs",
    "report",
    "simulate",
)  # loaded when first asked for


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"kerneltrick.{name}")
    raise AttributeError(f"module 'kerneltrick' has no attribute {name!r}")
