"""Ways to run the same recurrence, behind one protocol (`Engine`).

`dense` forms the weights and is the oracle, `recurrent` goes token by token, `chunked` is made of
matrix products and runs everywhere, `native` is compiled, for arrays on the CPU.
"""

from kerneltrick.engines import _native
from kerneltrick.engines._chunked import chunked
from kerneltrick.engines._config import set_num_threads, show_config
from kerneltrick.engines._core_call import core, in_lines
from kerneltrick.engines._dense import DenseRows, dense, dense_rows
from kerneltrick.engines._engine import ENGINES, ORDERS, Engine, Signature, register, run
from kerneltrick.engines._merge import merge
from kerneltrick.engines._native_decoder import decoder
from kerneltrick.engines._problem import (
    UNBOUNDED,
    Carry,
    Data,
    Near,
    Result,
    Rule,
    empty_carry,
    finish,
    times,
)
from kerneltrick.engines._recurrent import recurrent

register(
    Engine("native", _native.native, _native.supports, _native.prepare, _native.reason),
    orders=("auto", "exact"),
)
register(Engine("chunked", chunked), orders=("auto",))
register(Engine("recurrent", recurrent))
register(Engine("dense", dense), orders=("exact",))

__all__ = [
    "ENGINES",
    "ORDERS",
    "UNBOUNDED",
    "Carry",
    "Data",
    "DenseRows",
    "Engine",
    "Near",
    "Result",
    "Rule",
    "Signature",
    "chunked",
    "core",
    "decoder",
    "dense",
    "dense_rows",
    "empty_carry",
    "finish",
    "in_lines",
    "merge",
    "recurrent",
    "register",
    "run",
    "set_num_threads",
    "show_config",
    "times",
]
