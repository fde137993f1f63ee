"""Ways to run the same recurrence, one signature: engine(plan, data) → result.

`dense` forms the weights and is the oracle, `recurrent` goes token by token, `chunked` is made of
matrix products and runs everywhere, `native` is compiled, for arrays on the CPU.
"""

from kerneltrick.engines._chunked import chunked
from kerneltrick.engines._config import set_num_threads, show_config
from kerneltrick.engines._dense import DenseRows, dense, dense_rows
from kerneltrick.engines._native import core, in_lines, native, supports
from kerneltrick.engines._native_decoder import decoder
from kerneltrick.engines._near import Tokens, fold, joined, near_ranks, settle
from kerneltrick.engines._problem import (
    UNBOUNDED,
    Carry,
    Data,
    Near,
    Plan,
    Result,
    empty_carry,
    finish,
    times,
)
from kerneltrick.engines._recurrent import recurrent

ENGINES = {"dense": dense, "recurrent": recurrent, "chunked": chunked, "native": native}

__all__ = [
    "ENGINES",
    "UNBOUNDED",
    "Carry",
    "Data",
    "DenseRows",
    "Near",
    "Plan",
    "Result",
    "Tokens",
    "chunked",
    "core",
    "decoder",
    "dense",
    "dense_rows",
    "empty_carry",
    "finish",
    "fold",
    "in_lines",
    "joined",
    "native",
    "near_ranks",
    "recurrent",
    "set_num_threads",
    "settle",
    "show_config",
    "supports",
    "times",
]
