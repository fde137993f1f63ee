"""What is computed: dense truth, linear attention, the weights it implies, its state."""

from kerneltrick.attention._arguments import VanishingNormalizerError
from kerneltrick.attention._arguments import check_causal as check_causal
from kerneltrick.attention._arguments import check_count as check_count
from kerneltrick.attention._arguments import check_inputs as check_inputs
from kerneltrick.attention._arguments import check_on_zero as check_on_zero
from kerneltrick.attention._arguments import check_scale as check_scale
from kerneltrick.attention._decode import Decoder
from kerneltrick.attention._delta import delta_rule
from kerneltrick.attention._delta_decode import DeltaDecoder
from kerneltrick.attention._delta_state import DeltaState
from kerneltrick.attention._delta_weights import delta_weights
from kerneltrick.attention._dense import Substitute as Substitute
from kerneltrick.attention._dense import hard_attention, kernel_attention, softmax_attention
from kerneltrick.attention._dial import Dial, Far, HeadGroup
from kerneltrick.attention._dial import by_head as by_head
from kerneltrick.attention._dial import check_far as check_far
from kerneltrick.attention._dial import check_window as check_window
from kerneltrick.attention._dial import combined as combined
from kerneltrick.attention._dial import dial_text as dial_text
from kerneltrick.attention._dial import read_tail as read_tail
from kerneltrick.attention._dial import resolve as resolve
from kerneltrick.attention._heads import Windows as Windows
from kerneltrick.attention._heads import select as select
from kerneltrick.attention._history import History
from kerneltrick.attention._keywords import LinearAttentionKeywords as LinearAttentionKeywords
from kerneltrick.attention._keywords import OnZero as OnZero
from kerneltrick.attention._keywords import Options as Options
from kerneltrick.attention._keywords import Positions as Positions
from kerneltrick.attention._keywords import read_options as read_options
from kerneltrick.attention._keywords import with_keywords_of as with_keywords_of
from kerneltrick.attention._linear import attention_weights, linear_attention
from kerneltrick.attention._linear import check_rows as check_rows
from kerneltrick.attention._mixed import MixedState
from kerneltrick.attention._mixed import split_call as split_call
from kerneltrick.attention._mixed import state_from as state_from
from kerneltrick.attention._mixed import together as together
from kerneltrick.attention._multihead import (
    KVCache,
    MultiHeadAttention,
    combine_heads,
    split_heads,
)
from kerneltrick.attention._selective_scan import selective_scan
from kerneltrick.attention._short_convolution import short_convolution
from kerneltrick.attention._state import State
from kerneltrick.attention._state_file import encoded as encoded
from kerneltrick.attention._state_file import tensors_of as tensors_of

# The public names. Imports of the form `x as x` are for other rooms of the package.
__all__ = [
    "Decoder",
    "DeltaDecoder",
    "DeltaState",
    "Dial",
    "Far",
    "HeadGroup",
    "History",
    "KVCache",
    "MixedState",
    "MultiHeadAttention",
    "State",
    "VanishingNormalizerError",
    "attention_weights",
    "combine_heads",
    "delta_rule",
    "delta_weights",
    "hard_attention",
    "kernel_attention",
    "linear_attention",
    "selective_scan",
    "short_convolution",
    "softmax_attention",
    "split_heads",
]
