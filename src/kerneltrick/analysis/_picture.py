"""What a report needs to draw weights itself: queries, keys and maps, as text."""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import Array, as_numpy
from kerneltrick.analysis._data import AttentionData

MOST_TOKENS = 256


def picture(data: AttentionData, feature_maps: Iterable[maps.MapLike]) -> dict[str, Any]:
    """The first tokens of q and k in float16, and each map with its parameters and weights."""
    shown, _ = data.sanitized()
    tokens = min(MOST_TOKENS, shown.q.shape[2])
    d = shown.q.shape[-1]
    return {
        "tokens": tokens,
        "q": _pack(shown.q[:, :, :tokens], "<f2"),
        "k": _pack(shown.k[:, :, :tokens], "<f2"),
        "maps": [_describe(maps.get(text), d) for text in feature_maps],
    }


def _describe(feature_map: maps.FeatureMap, d: int) -> dict[str, Any]:
    parameters = {
        field.name: value
        for field in dataclasses.fields(feature_map)
        if isinstance(value := getattr(feature_map, field.name), (int, float, str))
    }
    projection = None
    if isinstance(feature_map, maps.Favor):
        projection = _pack(feature_map.projection(d), "<f4")
    elif isinstance(feature_map, maps.T2R):
        projection = _pack(feature_map.weights(d).T, "<f4")
    return {
        "map": str(feature_map),
        "name": feature_map.name,
        "parameters": parameters,
        "scale": feature_map.default_scale(d),
        "projection": projection,
    }


def _pack(x: Array, dtype: str) -> str:
    with np.errstate(over="ignore"):
        values = np.ascontiguousarray(as_numpy(x)).astype(dtype)
    return base64.b64encode(values.tobytes()).decode("ascii")
