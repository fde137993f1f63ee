"""Hugging Face models: what their attention sees, and maps in place of softmax (extra `hf`)."""

try:
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        f"kerneltrick.hf needs transformers and torch ({error}): pip install 'kerneltrick[hf]'"
    ) from None

from kerneltrick.hf._attend import register
from kerneltrick.hf._cache import Cache
from kerneltrick.hf._capture import capture
from kerneltrick.hf._linearized import LinearizedForCausalLM, LinearizedModel
from kerneltrick.hf._mask import AttentionError
from kerneltrick.hf._recorder import CaptureError

__all__ = [
    "AttentionError",
    "Cache",
    "CaptureError",
    "LinearizedForCausalLM",
    "LinearizedModel",
    "capture",
    "register",
]
