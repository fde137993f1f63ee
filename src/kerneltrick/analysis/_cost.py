"""What attention costs on this machine: measured time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from kerneltrick import maps
from kerneltrick._arrays import Array, as_numpy
from kerneltrick.attention import linear_attention, softmax_attention


def measure_time(
    q: Array,
    k: Array,
    v: Array,
    feature_map: maps.MapLike | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    seconds: float = 0.3,
) -> float:
    """Milliseconds per 1000 tokens of `linear_attention`, or of `softmax_attention` without a map.

    The best of at least three runs after one that is not counted, repeated for `seconds`. All heads
    of a token count as one token.

    >>> import numpy as np
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 256, 16))
    >>> measure_time(q, k, v, "elu", seconds=0.01) > 0
    True
    """

    def run() -> Array:
        if feature_map is None:
            return softmax_attention(q, k, v, causal=causal, scale=scale)
        return linear_attention(q, k, v, feature_map, causal=causal, scale=scale, on_zero="nan")

    tokens = int(math.prod(q.shape[:-3]) * q.shape[-2])
    return best_time(run, seconds=seconds) * 1e6 / tokens


def best_time(run: Callable[[], Any], *, seconds: float = 0.3, least: int = 3) -> float:
    """The shortest of repeated runs, in seconds; reading the result waits for it to be there."""
    as_numpy(run())
    best, runs, start = math.inf, 0, time.perf_counter()
    while runs < least or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        as_numpy(run())
        best, runs = min(best, time.perf_counter() - before), runs + 1
    return best
