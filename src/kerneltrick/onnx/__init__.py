"""Layers and language models as ONNX, with states as inputs and outputs (extra `onnx`).

The model is written for any batch and any number of tokens. Prefill and decoding use the same file:
give the tokens and the state so far, and get the outputs and the state after them.
"""

from kerneltrick._install import missing as _missing

try:
    import onnx as _onnx  # noqa: F401
    import onnxscript as _onnxscript  # noqa: F401
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise _missing("kerneltrick.onnx needs ONNX and PyTorch", "onnx", error) from None

from kerneltrick.onnx._export import export
from kerneltrick.onnx._state import StateInput, empty_state, state_inputs

__all__ = ["StateInput", "empty_state", "export", "state_inputs"]
