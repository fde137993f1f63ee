"""Ways to run the same recurrence, behind one protocol (`Engine`).

`dense` forms the weights and is the oracle, `recurrent` goes token by token, `chunked` is made of
matrix products and runs everywhere, `native` is compiled, for arrays on the CPU. The delta rule has
the last three, under the same names, as has the selective scan of Mamba. `direct` is the short
convolution on any array library. `onnx` runs nothing: it writes calls as an operator of ONNX's.
"""

from kerneltrick.engines import _native, _native_sequence, _onnx
from kerneltrick.engines._chunked import chunked
from kerneltrick.engines._config import set_num_threads, show_config
from kerneltrick.engines._convolution import (
    ConvolutionData,
    ConvolutionResult,
    ConvolutionRule,
    direct,
)
from kerneltrick.engines._core_call import core, in_lines
from kerneltrick.engines._delta_chunked import delta_chunked
from kerneltrick.engines._delta_native import delta_decoder, delta_native, delta_step
from kerneltrick.engines._delta_problem import (
    DeltaData,
    DeltaResult,
    DeltaRule,
    DeltaTokens,
    empty_state,
    prepare_tokens,
)
from kerneltrick.engines._delta_recurrent import delta_recurrent
from kerneltrick.engines._dense import DenseRows, dense, dense_rows
from kerneltrick.engines._engine import ENGINES, ORDERS, Engine, Signature, register, run
from kerneltrick.engines._merge import merge
from kerneltrick.engines._native_decoder import decoder
from kerneltrick.engines._native_sequence import convolution_step, repeat, scan_step
from kerneltrick.engines._onnx import onnx_operator, written_without_state
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
    vanishes,
)
from kerneltrick.engines._recurrent import recurrent
from kerneltrick.engines._scan import (
    ScanData,
    ScanResult,
    ScanRule,
    scan_chunked,
    scan_recurrent,
)

register(
    Engine("native", _native.native, _native.supports, _native.prepare, _native.reason),
    orders=("auto", "exact"),
)
register(Engine("onnx", _onnx.attention, _onnx.supports, reason=_onnx.reason), orders=("auto",))
register(Engine("chunked", chunked), orders=("auto",))
register(Engine("recurrent", recurrent))
register(Engine("dense", dense), orders=("exact",))
for operator, compiled in (
    ("delta_rule", delta_native),
    ("short_convolution", _native_sequence.native_convolution),
    ("selective_scan", _native_sequence.native_scan),
):
    register(
        Engine(
            "native",
            compiled,
            supports=_native_sequence.supports,
            reason=_native_sequence.reason,
            operator=operator,
        ),
        orders=("auto",),
    )
register(
    Engine("onnx", _onnx.delta_rule, _onnx.supports, reason=_onnx.reason, operator="delta_rule"),
    orders=("auto",),
)
register(Engine("chunked", delta_chunked, operator="delta_rule"), orders=("auto",))
register(Engine("recurrent", delta_recurrent, operator="delta_rule"))
register(Engine("direct", direct, operator="short_convolution"), orders=("auto",))
register(Engine("chunked", scan_chunked, operator="selective_scan"), orders=("auto",))
register(Engine("recurrent", scan_recurrent, operator="selective_scan"))

__all__ = [
    "ENGINES",
    "ORDERS",
    "UNBOUNDED",
    "Carry",
    "ConvolutionData",
    "ConvolutionResult",
    "ConvolutionRule",
    "Data",
    "DeltaData",
    "DeltaResult",
    "DeltaRule",
    "DeltaTokens",
    "DenseRows",
    "Engine",
    "Near",
    "Result",
    "Rule",
    "ScanData",
    "ScanResult",
    "ScanRule",
    "Signature",
    "chunked",
    "convolution_step",
    "core",
    "decoder",
    "delta_chunked",
    "delta_decoder",
    "delta_native",
    "delta_recurrent",
    "delta_step",
    "dense",
    "dense_rows",
    "direct",
    "empty_carry",
    "empty_state",
    "finish",
    "in_lines",
    "merge",
    "onnx_operator",
    "prepare_tokens",
    "recurrent",
    "register",
    "repeat",
    "run",
    "scan_chunked",
    "scan_recurrent",
    "scan_step",
    "set_num_threads",
    "show_config",
    "times",
    "vanishes",
    "written_without_state",
]
