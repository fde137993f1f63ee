"""Building blocks for the mistakes of lab 07: random arrays, weights and masks."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def normal(*shape: int, seed: int, size: float = 1.0) -> Array:
    return size * np.random.default_rng([7, seed]).standard_normal(shape)


def taylor(t: Array) -> Array:
    return 1 + t + t * t / 2


def normalised(weights: Array, axis: int = 1) -> Array:
    return np.asarray(weights / weights.sum(axis=axis, keepdims=True))


def ages(n: int) -> Array:
    return np.arange(n)[:, None] - np.arange(n)


def scaled_scores(Q: Array, K: Array, power: float = 0.5) -> Array:
    return np.asarray(Q @ K.T / Q.shape[1] ** power)


def softmax(scores: Array, kept: Array, masked: float = -np.inf, axis: int = 1) -> Array:
    scores = np.where(kept, scores, masked)
    return normalised(np.exp(scores - scores.max(axis=axis, keepdims=True)), axis)
