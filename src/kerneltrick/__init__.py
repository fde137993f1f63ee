"""Attention in linear time, with proof: feature maps, linear attention, and what they cost.

Everything is loaded on first use, even `typing`: the command line must be able to handle Ctrl-C
before it loads anything.
"""

from __future__ import annotations

from kerneltrick._version import __version__

TYPE_CHECKING = False  # type checkers take it for typing.TYPE_CHECKING
if TYPE_CHECKING:
    from typing import Any

    from kerneltrick import maps
    from kerneltrick.attention import (
        Decoder,
        DeltaDecoder,
        DeltaState,
        Dial,
        Far,
        History,
        MultiHeadAttention,
        State,
        VanishingNormalizerError,
        attention_weights,
        delta_rule,
        delta_weights,
        hard_attention,
        kernel_attention,
        linear_attention,
        selective_scan,
        short_convolution,
        softmax_attention,
    )
    from kerneltrick.engines import set_num_threads, show_config

__all__ = [
    "Decoder",
    "DeltaDecoder",
    "DeltaState",
    "Dial",
    "Far",
    "History",
    "MultiHeadAttention",
    "State",
    "VanishingNormalizerError",
    "__version__",
    "attention_weights",
    "delta_rule",
    "delta_weights",
    "hard_attention",
    "kernel_attention",
    "linear_attention",
    "maps",
    "selective_scan",
    "set_num_threads",
    "short_convolution",
    "show_config",
    "softmax_attention",
]

_ROOMS = (
    "analysis",
    "attention",
    "conformance",
    "costs",
    "engines",
    "hf",
    "kernels",
    "labs",
    "maps",
    "proofs",
    "report",
    "simulate",
)
_ENGINES = ("set_num_threads", "show_config")  # the other functions and classes are attention's


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        import importlib

        return importlib.import_module(f"kerneltrick.{name}")
    if name in __all__:
        _load()
        return globals()[name]
    raise AttributeError(f"module 'kerneltrick' has no attribute {name!r}")


def _load() -> None:
    """Bind all public names at once, so that later lookups find them in the module itself."""
    from kerneltrick import attention, engines, maps

    found = {
        name: getattr(engines if name in _ENGINES else attention, name)
        for name in __all__
        if name not in ("__version__", "maps")
    }
    globals().update(found, maps=maps)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
