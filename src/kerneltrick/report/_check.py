"""Checks that a comparison contains what the report and the figures need."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Any

FORMAT = "kerneltrick.compare/3"

_NEEDED: dict[str, tuple[str, ...]] = {
    "": (
        "format", "version", "data", "softmax", "uniform", "maps", "curves", "windows", "timing",
        "verdict",
    ),
    "data": (
        "source", "layers", "heads", "kv_heads", "n", "d", "causal", "scale", "dtype", "tokens",
        "seed",
    ),
    "softmax": ("ms_per_1000_tokens", "cache_bytes", "heads"),
}  # fmt: skip
_OF_MAP = ("map", "features", "state_bytes", "ms_per_1000_tokens", "summary", "heads")
_OF_CURVE = ("family", "points")
_OF_POINT = ("map", "features", "output_error", "mse", "limit_mse")
_OF_WINDOW = ("window", "map", "output_error", "whole_error")
_OF_TIMING = (
    "map", "baseline", "lengths", "linear_ms", "softmax_ms", "linear_fit", "softmax_fit",
    "crossover",
)  # fmt: skip
_OF_PICTURE = ("tokens", "q", "k", "maps")
_OF_DRAWN = (
    "map", "name", "parameters", "scale", "projection", "window", "sinks", "gain", "relative",
)  # fmt: skip


def check_comparison(comparison: Mapping[str, Any]) -> None:
    """Raise ValueError if a field is missing or has the wrong shape."""
    for place, names in _NEEDED.items():
        _require(comparison[place] if place else comparison, names, place)
    if comparison["format"] != FORMAT:
        raise ValueError(
            f"the comparison has format {comparison['format']!r}; this report needs {FORMAT!r}"
        )
    data, maps = comparison["data"], comparison["maps"]
    layers, heads = len(data["layers"]), len(data["heads"])
    if not layers or not heads:
        raise ValueError("the comparison has no layers or no heads, so there is nothing to draw")
    if data["kv_heads"] < 1 or heads % data["kv_heads"]:
        raise ValueError(f"{heads} query heads cannot share {data['kv_heads']} key heads evenly")
    if not maps:
        raise ValueError("the comparison has no maps, so there is nothing to draw")
    _check_grid(comparison["softmax"]["heads"], layers, heads, "softmax.heads")
    for at, entry in enumerate(maps):
        _require(entry, _OF_MAP, f"maps[{at}]")
        _check_grid(entry["heads"], layers, heads, f"maps[{at}].heads")
    for at, curve in enumerate(comparison["curves"]):
        _require(curve, _OF_CURVE, f"curves[{at}]")
        for number, point in enumerate(curve["points"]):
            _require(point, _OF_POINT, f"curves[{at}].points[{number}]")
    for at, curve in enumerate(comparison["windows"]):
        _require(curve, ("map", "points"), f"windows[{at}]")
        for number, point in enumerate(curve["points"]):
            _require(point, _OF_WINDOW, f"windows[{at}].points[{number}]")
    if comparison["timing"] is not None:
        _require(comparison["timing"], _OF_TIMING, "timing")
        _check_timing(comparison["timing"])


def check_picture(comparison: Mapping[str, Any]) -> None:
    """Raise ValueError unless `picture` contains the queries and keys of every head."""
    if comparison.get("picture") is None:
        raise ValueError(
            "the comparison has no picture (the queries and keys to draw weights from); files "
            "written with --json do not contain it, so use the comparison itself"
        )
    picture, data = comparison["picture"], comparison["data"]
    _require(picture, _OF_PICTURE, "picture")
    tokens = picture["tokens"]
    if not 1 <= tokens <= data["n"]:
        raise ValueError(f"picture.tokens is {tokens}, but the data has {data['n']} tokens")
    if data["tokens"] is not None and len(data["tokens"]) < tokens:
        raise ValueError(f"data.tokens has {len(data['tokens'])} texts for {tokens} drawn tokens")
    for name, heads in (("q", len(data["heads"])), ("k", data["kv_heads"])):
        expected = 2 * len(data["layers"]) * heads * tokens * data["d"]
        found = len(decode(picture[name], f"picture.{name}"))
        if found != expected:
            raise ValueError(
                f"picture.{name} has {found} bytes; float16 of {len(data['layers'])} layers × "
                f"{heads} heads × {tokens} tokens × {data['d']} has {expected}"
            )
    for at, entry in enumerate(picture["maps"]):
        _require(entry, _OF_DRAWN, f"picture.maps[{at}]")
        if entry["projection"] is not None:
            found = len(decode(entry["projection"], f"picture.maps[{at}].projection"))
            if not found or found % (4 * data["d"]):
                raise ValueError(
                    f"picture.maps[{at}].projection has {found} bytes, which is no float32 "
                    f"matrix with {data['d']} columns"
                )


def decode(text: Any, place: str) -> bytes:
    """Decode a base64 text."""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ValueError(f"{place} is not base64: {error}") from None


def _require(value: Any, names: Sequence[str], place: str) -> None:
    where = f"the comparison's {place}" if place else "the comparison"
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must be a mapping, not {type(value).__name__}")
    for name in names:
        if name not in value:
            raise ValueError(f"{where} has no {name!r}; it needs {', '.join(names)}")


def _check_grid(grid: Any, layers: int, heads: int, place: str) -> None:
    if len(grid) != layers or any(len(row) != heads for row in grid):
        shape = [len(row) for row in grid]
        raise ValueError(f"{place} must be {layers} layers × {heads} heads, not rows of {shape}")


def _check_timing(timing: Mapping[str, Any]) -> None:
    count = len(timing["lengths"])
    for name, length in (
        ("linear_ms", count),
        ("softmax_ms", count),
        ("linear_fit", 2),
        ("softmax_fit", 3),
    ):
        if len(timing[name]) != length:
            raise ValueError(f"timing.{name} has {len(timing[name])} numbers, not {length}")
