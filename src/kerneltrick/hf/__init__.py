"""Hugging Face models: capture their attention, and replace their softmax (extra `hf`)."""

from kerneltrick._install import missing as _missing

try:
    import torch as _torch  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise _missing("kerneltrick.hf needs transformers and torch", "hf", error) from None

from kerneltrick.hf._accelerate import (
    Acceleration,
    AccelerationError,
    Replacement,
    accelerate,
    restore,
)
from kerneltrick.hf._cache import Cache
from kerneltrick.hf._capture import capture
from kerneltrick.hf._curve import HeadCurvePoint
from kerneltrick.hf._evaluate import Evaluation, EvaluationRow, evaluate
from kerneltrick.hf._finetune import Tuned
from kerneltrick.hf._folder import check_folder
from kerneltrick.hf._generate import Continuation
from kerneltrick.hf._generate import write_text as write_text
from kerneltrick.hf._heads import HeadRanking, rank_heads
from kerneltrick.hf._layers import load_with_tokenizer as load_with_tokenizer
from kerneltrick.hf._layers import watch_layers as watch_layers
from kerneltrick.hf._linearize import Linearization, linearize
from kerneltrick.hf._linearized import Head, LinearizedForCausalLM, LinearizedModel
from kerneltrick.hf._mask import AttentionError
from kerneltrick.hf._measure import Gain, Gains, measure_gains
from kerneltrick.hf._names import register, unregister
from kerneltrick.hf._passkey import Passkey, Phrasing, passkeys
from kerneltrick.hf._published import SHAPES, load_model
from kerneltrick.hf._record import read_record
from kerneltrick.hf._recorder import CaptureError
from kerneltrick.hf._speed import Speed
from kerneltrick.hf._split import OverlapError
from kerneltrick.hf._texts import decode, windows

__all__ = [
    "SHAPES",
    "Acceleration",
    "AccelerationError",
    "AttentionError",
    "Cache",
    "CaptureError",
    "Continuation",
    "Evaluation",
    "EvaluationRow",
    "Gain",
    "Gains",
    "Head",
    "HeadCurvePoint",
    "HeadRanking",
    "Linearization",
    "LinearizedForCausalLM",
    "LinearizedModel",
    "OverlapError",
    "Passkey",
    "Phrasing",
    "Replacement",
    "Speed",
    "Tuned",
    "accelerate",
    "capture",
    "check_folder",
    "decode",
    "evaluate",
    "linearize",
    "load_model",
    "measure_gains",
    "passkeys",
    "rank_heads",
    "read_record",
    "register",
    "restore",
    "unregister",
    "windows",
]
