"""What a report needs to compute weights in the browser: queries, keys and maps, as text."""

from __future__ import annotations

import base64
import dataclasses
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import Array, as_numpy
from kerneltrick.analysis._data import AttentionData
from kerneltrick.analysis._fitted import FittedMaps, names_file
from kerneltrick.attention import Dial, Far

MOST_TOKENS = 256
LEARNED = "learned"  # a map that the page cannot draw: learned, or with heads that differ


def picture(
    data: AttentionData, feature_maps: Iterable[maps.MapLike | Dial | FittedMaps]
) -> dict[str, Any]:
    """Return the first tokens of q and k in float16, and each map with its parameters."""
    shown, _ = data.sanitized()
    tokens = min(MOST_TOKENS, shown.q.shape[2])
    d = shown.q.shape[-1]
    return {
        "tokens": tokens,
        "q": _pack(shown.q[:, :, :tokens], "<f2"),
        "k": _pack(shown.k[:, :, :tokens], "<f2"),
        "maps": [_described(setting, d) for setting in feature_maps],
    }


def _described(setting: maps.MapLike | Dial | FittedMaps, d: int) -> dict[str, Any]:
    if isinstance(setting, FittedMaps) or (isinstance(setting, str) and names_file(setting)):
        # The page cannot draw learned maps, so their weights are not needed.
        return {**_describe(Dial.get("hedgehog"), d), "map": str(setting), "name": LEARNED}
    return _describe(Dial.get(setting), d)


def _describe(dial: Dial, d: int) -> dict[str, Any]:
    feature_map, far = dial.feature_map, dial.far or Far()
    gain = far.gain
    if gain is None:  # the default of linear_attention
        gain = 0.0 if far.relative else -math.log(feature_map.unit(d))
    parameters = {
        field.name: value
        for field in dataclasses.fields(feature_map)
        if isinstance(value := getattr(feature_map, field.name), (int, float, str))
    }
    learned = isinstance(feature_map, maps.Hedgehog) and (
        feature_map.weight is not None or feature_map.key_weight is not None
    )
    projection = None
    if isinstance(feature_map, maps.Favor):
        projection = _pack(feature_map.projection(d), "<f4")
    elif isinstance(feature_map, maps.T2R):
        projection = _pack(feature_map.weights(d).T, "<f4")
    return {
        "map": str(dial),
        "name": LEARNED if learned or dial.by_head else feature_map.name,
        "parameters": parameters,
        "scale": feature_map.default_scale(d),
        "projection": projection,
        "window": 0 if dial.by_head else dial.window,
        "sinks": 0 if dial.by_head else dial.sinks,
        "gain": gain,
        "relative": far.relative,
    }


def _pack(x: Array, dtype: str) -> str:
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(as_numpy(x)).astype(dtype)
    return base64.b64encode(values.tobytes()).decode("ascii")
