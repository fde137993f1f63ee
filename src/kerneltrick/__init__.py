"""Attention in linear time, with proof: feature maps, linear attention, and what they cost."""

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
