"""What is computed: dense truth, linear attention, the weights it implies, its state."""

from kerneltrick.attention._arguments import VanishingNormalizerError
from kerneltrick.attention._linear import attention_weights, linear_attention
from kerneltrick.attention._state import State

__all__ = ["State", "VanishingNormalizerError", "attention_weights", "linear_attention"]
