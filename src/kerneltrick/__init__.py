from kerneltrick import maps
from kerneltrick._version import __version__
from kerneltrick.attention import State, VanishingNormalizerError, attention_weights, linear_attention
