"""Queries, keys and values made up for study, named by a text."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class QKV(NamedTuple):
    """Queries, keys and values (..., heads, n, d) or (n, d)."""

    q: NDArray[Any]
    k: NDArray[Any]
    v: NDArray[Any]


def synthetic(text: str = "gaussian", seed: int = 0) -> QKV:
    """float32 arrays (heads, n, d) for a text such as `gaussian:n=1024,d=64,scale=1,heads=1`.

    gaussian: q, k ~ N(0, scale²), v ~ N(0, 1), all independent. Defaults: n=512, d=64, scale=1,
    heads=1. The same text and seed give the same numbers.

    >>> q, k, v = synthetic("gaussian:n=100,heads=2", seed=1)
    >>> q.shape, str(v.dtype)
    ((2, 100, 64), 'float32')
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
        raise ValueError(f"synthetic data needs seed to be a whole number ≥ 0, not {seed!r}")
    name, _, tail = (part.strip() for part in text.partition(":"))
    if name not in _KINDS:
        raise ValueError(f"unknown synthetic data {name!r}; {_nearest(name, list(_KINDS))}")
    values: dict[str, float] = {"n": 512, "d": 64, "scale": 1.0, "heads": 1}
    given: set[str] = set()
    for part in filter(None, (part.strip() for part in tail.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise ValueError(f"synthetic data {text!r}: expected key=value after ':', got {part!r}")
        if key not in values:
            raise ValueError(f"{name} has no parameter {key!r}; {_nearest(key, list(values))}")
        if key in given:
            raise ValueError(f"synthetic data {text!r} gives {key} twice")
        given.add(key)
        values[key] = _read(name, key, value)
    shape = (int(values["heads"]), int(values["n"]), int(values["d"]))
    return _KINDS[name](np.random.default_rng(seed), shape, values["scale"])


def _gaussian(rng: np.random.Generator, shape: tuple[int, ...], scale: float) -> QKV:
    q, k, v = rng.standard_normal((3, *shape), dtype=np.float32)
    return QKV(q * np.float32(scale), k * np.float32(scale), v)


_KINDS: dict[str, Callable[[np.random.Generator, tuple[int, ...], float], QKV]] = {
    "gaussian": _gaussian
}


def _read(name: str, key: str, value: str) -> float:
    expected = "a number > 0" if key == "scale" else "a whole number ≥ 1"
    try:
        number = float(value) if key == "scale" else int(value)
    except ValueError:
        raise ValueError(f"{name} needs {key} to be {expected}, not {value!r}") from None
    if not (math.isfinite(number) and number > 0):
        raise ValueError(f"{name} needs {key} to be {expected}, not {value}")
    return number


def _nearest(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    listing = "known are " + ", ".join(known)
    return f"did you mean {close[0]!r}? ({listing})" if close else listing
