"""The functions that exercises are given as arguments: feature maps (..., n, d) → (..., n, m)."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def identity(x: Array) -> Array:
    return x


def exp(x: Array) -> Array:
    return np.exp(x)


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def elu(x: Array) -> Array:
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))


def with_square(x: Array) -> Array:
    """Twice as many features as coordinates, all positive."""
    return np.concatenate([np.exp(x / 4), 1 + x * x], axis=-1)
