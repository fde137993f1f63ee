"""What is computed: dense truth, linear attention, the weights it implies, its state."""

from kerneltrick.attention._arguments import VanishingNormalizerError
from kerneltrick.attention._decode import Decoder
from kerneltrick.attention._dense import hard_attention, kernel_attention, softmax_attention
from kerneltrick.attention._dial import Dial, Far
from kerneltrick.attention._linear import attention_weights, linear_attention
from kerneltrick.attention._multihead import (
    KVCache,
    MultiHeadAttention,
    combine_heads,
    split_heads,
)
from kerneltrick.attention._state import State

__all__ = [
    "Decoder",
    "Dial",
    "Far",
    "KVCache",
    "MultiHeadAttention",
    "State",
    "VanishingNormalizerError",
    "attention_weights",
    "combine_heads",
    "hard_attention",
    "kernel_attention",
    "linear_attention",
    "softmax_attention",
    "split_heads",
]
