"""Building blocks for the mistakes of lab 05: random arrays and attention."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from kerneltrick.labs.grader._pieces import Array, softmax

Attend = Callable[..., Array]
EXACT = 1e-9  # counts are whole numbers; floats that hold them exactly pass


OVERFLOWS = (
    "your softmax overflows: subtract the largest score of each query before np.exp, which changes "
    "no weight"
)
FUTURE_MAXIMUM = (
    "with causal=True you subtract the largest score of all keys, including later ones: if a later "
    "score is much larger, every weight that counts is exp(−2000) = 0, and 0/0 is NaN. Mask first, "
    "then subtract the largest score that is left"
)


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([5, seed, *shape]).standard_normal(shape)


def transposed(X: Array) -> Array:
    return np.swapaxes(X, -1, -2)


def softmax_heads(
    Q: Array,
    K: Array,
    V: Array,
    causal: bool = False,
    *,
    scale: float | None = None,
    axis: int = -1,
) -> Array:
    """Right unless a scale or an axis is given."""
    scale = 1 / math.sqrt(Q.shape[-1]) if scale is None else scale
    scores = scale * (Q @ transposed(K))
    if causal:
        scores = np.where(np.tri(*scores.shape[-2:]) > 0, scores, -np.inf)
    return np.asarray(softmax(scores, axis) @ V)
