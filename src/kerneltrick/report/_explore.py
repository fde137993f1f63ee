"""The explorable page of the kernel trick: five chapters that answer to controls."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import Array
from kerneltrick._version import __version__
from kerneltrick.analysis import AttentionData, picture, sample, synthetic_attention
from kerneltrick.attention import Dial

TOKENS, WIDTH = 128, 32  # of the heads of the dial: those of the sample
PLANE = 2  # the width of queries and keys that can be dragged
DRAWS, SEEDS = 64, 40  # of the random features in the plane
LEARNED_SEEDS = 8
WIDTHS = (4, 8, 16, 32)  # of the keys to remember

# What the controls of a map in the plane offer, by the name of the parameter: the smallest and the
# largest value and the step, or the choices.
_OFFERED: dict[str, tuple[float, float, float] | tuple[str, ...]] = {
    "power": (1, 9, 0.5),
    "horizon": (TOKENS, 4 * TOKENS, 1),
    "features": (2, DRAWS, 2),
    "kind": ("positive", "hyperbolic", "trig"),
    "seed": (0, SEEDS - 1, 1),
    "degree": (1, 6, 1),
    "constant": (0, 4, 0.25),
    "order": (1, 8, 1),
    "activation": ("softmax", "exp"),
    "separate": ("false", "true"),
}
_IN_PLANE = {
    "cosformer": f"cosformer:horizon={TOKENS}",
    "favor": "favor:features=16",
    "t2r": "t2r:features=16",
}
_ON_DIAL = (
    "elu",
    "relu",
    "hedgehog",
    "taylor:order=2",
    "favor:features=64",
    "softmax",
)
_TO_REMEMBER = ("identity", "elu", "relu", "poly:degree=2", "taylor:order=2", "softmax")
_SYNTHETIC = ("clustered", "needle", "gaussian")


def explorable() -> dict[str, Any]:
    """Return what the page computes with: data, the draws of random maps, and the maps offered."""
    synthetic = [synthetic_attention(f"{kind}:n={TOKENS},d={WIDTH}") for kind in _SYNTHETIC]
    return {
        "version": __version__,
        "plane": {
            "maps": [_in_plane(_IN_PLANE.get(name, name)) for name in maps.names()],
            "draws": [_packed(_favor(seed)) for seed in range(SEEDS)],
            "learned": [_packed(_t2r(seed)) for seed in range(LEARNED_SEEDS)],
        },
        "dial": {
            "tokens": TOKENS,
            "width": WIDTH,
            "sources": [
                _source(sample(), "all-MiniLM-L6-v2"),
                *(_source(data, kind) for data, kind in zip(synthetic, _SYNTHETIC, strict=True)),
            ],
            "maps": [_on_dial(text) for text in _ON_DIAL],
        },
        "recall": {
            "widths": WIDTHS,
            "maps": [
                {"map": text, "at": [_described(text, d) for d in WIDTHS]} for text in _TO_REMEMBER
            ],
        },
    }


def _in_plane(text: str) -> dict[str, Any]:
    """Describe a map and the controls of its parameters."""
    found = maps.get(text)
    controls = []
    for field in dataclasses.fields(found):
        value = getattr(found, field.name)
        if field.name not in _OFFERED or (found.name == "t2r" and field.name == "features"):
            continue
        offered = _OFFERED[field.name]
        if found.name == "t2r":
            offered = (0, LEARNED_SEEDS - 1, 1)
        value = str(value).lower() if isinstance(value, bool) else value
        controls.append({"name": field.name, "value": value, "offered": offered})
    return {**_described(text, PLANE), "sign": found.sign, "controls": controls}


def _on_dial(text: str) -> dict[str, Any]:
    found = maps.get(text)
    cost = found.operations(WIDTH)
    assert cost is not None  # every map that is offered declares its cost
    projection = found.projection(WIDTH) if isinstance(found, maps.Favor) else None
    return {
        **_described(text, WIDTH),
        "products": int(cost.products),
        "projection": None if projection is None else _packed(projection),
    }


def _described(text: str, d: int) -> dict[str, Any]:
    """Return the entry of a map as the comparison's page has it, and its number of features."""
    token = AttentionData.from_arrays(*np.zeros((3, 1, d), dtype=np.float32))
    entry = picture(token, [Dial(maps.get(text))])["maps"][0]
    return {**entry, "projection": None, "features": maps.get(text).dim(d)}


def _source(data: AttentionData, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "layers": list(data.layers or range(data.q.shape[0])),
        "heads": data.q.shape[1],
        **{side: _packed(getattr(data, side), "<f2") for side in "qkv"},
    }


def _favor(seed: int) -> Array:
    return maps.Favor(features=DRAWS, seed=seed).projection(PLANE)


def _t2r(seed: int) -> Array:
    return maps.T2R(features=16, seed=seed).weights(PLANE).T


def _packed(x: Array, dtype: str = "<f8") -> str:
    return base64.b64encode(np.ascontiguousarray(x).astype(dtype).tobytes()).decode("ascii")
