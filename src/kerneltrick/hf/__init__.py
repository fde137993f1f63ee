"""Queries, keys and values of Hugging Face models (extra `hf`)."""

from kerneltrick.hf._capture import capture
from kerneltrick.hf._recorder import CaptureError

__all__ = ["CaptureError", "capture"]
