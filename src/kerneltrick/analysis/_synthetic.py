"""Synthetic queries, keys and values, described by a text."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kerneltrick import _text
from kerneltrick.analysis._data import AttentionData

Floats: TypeAlias = NDArray[np.float32]
Parameters: TypeAlias = Mapping[str, float]


def synthetic_attention(text: str = "gaussian", seed: int = 0) -> AttentionData:
    """Create a layer of float32 data from a text such as `needle:n=1024,d=64,strength=12,heads=4`.

    v ~ N(0, 1) always; each head has its own topics, matches and noise:
    gaussian:  q, k ~ N(0, scale²), all independent.
    clustered: every token belongs to one of `clusters` topics with centre μ; q and k are both
               scale·(μ + spread·ε)/√(1 + spread²) with ε, μ ~ N(0, 1), so entries have the
               variance of gaussian ones.
    needle:    as gaussian, but one key j ≤ i matches query i: along k_j the query is changed so
               that its score q·k_j/√d is exactly scale²·strength.

    Defaults: n=512, d=64, scale=1, heads=1, clusters=8, spread=0.5, strength=10. The same text and
    seed give the same numbers.

    >>> data = synthetic_attention("clustered:n=100,heads=2,clusters=4", seed=1)
    >>> data.q.shape, str(data.v.dtype)
    ((1, 2, 100, 64), 'float32')
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"synthetic data needs seed to be a whole number ≥ 0, not {seed!r}")
    name, values = _parse(text)
    shape = (int(values["heads"]), int(values["n"]), int(values["d"]))
    # A separate stream, so that the same seed gives independent numbers in maps and other kinds.
    rng = np.random.default_rng([seed, *name.encode()])
    q, k = _KINDS[name](rng, shape, values)
    v = rng.standard_normal(shape, dtype=np.float32)
    scale = np.float32(values["scale"])
    return AttentionData.from_arrays(q * scale, k * scale, v, source=f"{text}, seed {seed}")


def _gaussian(
    rng: np.random.Generator, shape: tuple[int, int, int], values: Parameters
) -> tuple[Floats, Floats]:
    q, k = rng.standard_normal((2, *shape), dtype=np.float32)
    return q, k


def _clustered(
    rng: np.random.Generator, shape: tuple[int, int, int], values: Parameters
) -> tuple[Floats, Floats]:
    heads, n, d = shape
    clusters, spread = int(values["clusters"]), np.float32(values["spread"])
    centres = rng.standard_normal((heads, clusters, d), dtype=np.float32)
    topics = rng.integers(clusters, size=(heads, n))
    own = np.take_along_axis(centres, topics[..., None], axis=1)
    q, k = (own + spread * noise for noise in rng.standard_normal((2, *shape), dtype=np.float32))
    length = np.sqrt(1 + spread * spread)
    return q / length, k / length


def _needle(
    rng: np.random.Generator, shape: tuple[int, int, int], values: Parameters
) -> tuple[Floats, Floats]:
    heads, n, d = shape
    q, k = rng.standard_normal((2, *shape), dtype=np.float32)
    match = rng.integers(np.arange(1, n + 1), size=(heads, n))  # j ≤ i: visible if causal
    needle = np.take_along_axis(k, match[..., None], axis=1)
    score = np.einsum("hnd,hnd->hn", q, needle)
    missing = np.float32(values["strength"] * math.sqrt(d)) - score
    q += (missing / np.einsum("hnd,hnd->hn", needle, needle))[..., None] * needle
    return q, k


_KINDS: dict[
    str,
    Callable[[np.random.Generator, tuple[int, int, int], Parameters], tuple[Floats, Floats]],
] = {"gaussian": _gaussian, "clustered": _clustered, "needle": _needle}

_COMMON: Parameters = {"n": 512, "d": 64, "scale": 1.0, "heads": 1}
_OWN: Mapping[str, Parameters] = {
    "gaussian": {},
    "clustered": {"clusters": 8, "spread": 0.5},
    "needle": {"strength": 10.0},
}
_REALS = ("scale", "spread", "strength")


def _parse(text: str) -> tuple[str, dict[str, float]]:
    name, given = _text.split("synthetic data", text)
    if name not in _KINDS:
        raise ValueError(f"unknown synthetic data {name!r}; {_text.nearest(name, _KINDS)}")
    values = {**_COMMON, **_OWN[name]}
    for key, value in given.items():
        if key not in values:
            raise ValueError(f"{name} has no parameter {key!r}; {_text.nearest(key, values)}")
        values[key] = _read(name, key, value)
    return name, values


def _read(name: str, key: str, value: str) -> float:
    expected = "a number > 0" if key in _REALS else "a whole number ≥ 1"
    try:
        number = float(value) if key in _REALS else int(value)
    except ValueError:
        raise ValueError(f"{name} needs {key} to be {expected}, not {value!r}") from None
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} needs {key} to be {expected}, not {value}")
    return number
