"""Time against n, measured on this machine, and the length from which linear attention wins."""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import Array, as_numpy
from kerneltrick.analysis._types import Timing
from kerneltrick.attention import Dial, linear_attention, softmax_attention
from kerneltrick.engines import core

LARGEST_SCORES = 1 << 25  # scores of all heads: 128 MiB if NumPy forms them
LENGTHS = (128, 256, 512, 1024, 2048, 4096)
SECONDS = 0.05
LONG = 1.0  # seconds; a run that takes longer is not repeated


def timing_lengths(heads: int) -> tuple[int, ...]:
    """Return the lengths at which softmax is measured; the compiled one stores no scores."""
    largest = LARGEST_SCORES if core() is None else 32 * LARGEST_SCORES
    fitting = tuple(n for n in LENGTHS if heads * n * n <= largest)
    return fitting if len(fitting) >= 3 else LENGTHS[:3]


def baseline() -> str:
    """Name the softmax implementation that is timed."""
    return "softmax written in NumPy" if core() is None else "compiled softmax"


def other_work() -> float:
    """Return the CPU seconds that other processes have used so far; 0 if unknown."""
    try:
        busy = [int(x) for x in Path("/proc/stat").read_text().split()[1:9]]
        ticks = os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, AttributeError):
        return 0.0
    idle, waiting = busy[3], busy[4]
    return (sum(busy) - idle - waiting) / ticks - time.process_time()


def measure_softmax(heads: int, d: int, width: int, causal: bool) -> list[float]:
    """Measure softmax attention (see `baseline`) in float32, in milliseconds for each length.

    Without the core a minimal NumPy version is timed: the checks in `softmax_attention` would make
    linear attention look better than it is.
    """
    attend = lean_softmax if core() is None else softmax_attention
    times = []
    for n in timing_lengths(heads):
        q, k, v = _arrays(heads, n, d, width)
        run = functools.partial(attend, q, k, v, causal=causal)
        times.append(best_time(run, seconds=SECONDS, least=2) * 1e3)
    return times


def best_time(run: Callable[[], Any], *, seconds: float = 0.3, least: int = 3) -> float:
    """Return the shortest of repeated runs, in seconds; reading the result waits for it.

    The first run does not count, unless it takes so long that it is the only one.
    """
    before = time.perf_counter()
    as_numpy(run())
    first = time.perf_counter() - before
    if first > LONG:
        return first
    best, runs, start = math.inf, 0, time.perf_counter()
    while runs < least or time.perf_counter() - start < seconds:
        before = time.perf_counter()
        as_numpy(run())
        best, runs = min(best, time.perf_counter() - before), runs + 1
    return best


def lean_softmax(q: Array, k: Array, v: Array, causal: bool) -> Array:
    """Compute softmax(QKᵀ/√d)V in place, without any checks."""
    weights = (q * np.float32(1 / math.sqrt(q.shape[-1]))) @ k.mT
    if causal:
        weights[..., ~np.tri(weights.shape[-1], dtype=bool)] = -np.inf
    weights -= weights.max(axis=-1, keepdims=True)
    np.exp(weights, out=weights)
    return (weights @ v) / weights.sum(axis=-1, keepdims=True)


def measure_linear(
    setting: maps.MapLike | Dial, heads: int, d: int, width: int, causal: bool
) -> list[float]:
    """Measure `linear_attention` with a map in the same way."""
    times = []
    for n in timing_lengths(heads):
        q, k, v = _arrays(heads, n, d, width)
        run = functools.partial(linear_attention, q, k, v, setting, causal=causal, on_zero="nan")
        times.append(best_time(run, seconds=SECONDS, least=2) * 1e3)
    return times


def timing(
    name: str, heads: int, linear_ms: Sequence[float], softmax_ms: Sequence[float]
) -> Timing:
    """Fit curves to the measured times, and find the length where they cross."""
    lengths = timing_lengths(heads)
    linear = fit(lengths, linear_ms, 1)
    softmax = fit(lengths, softmax_ms, 2)
    return Timing(
        map=name,
        baseline=baseline(),
        lengths=lengths,
        linear_ms=tuple(linear_ms),
        softmax_ms=tuple(softmax_ms),
        linear_fit=linear,
        softmax_fit=softmax,
        crossover=crossover(linear, softmax),
    )


def fit(lengths: Sequence[int], times: Sequence[float], degree: int) -> tuple[float, ...]:
    """Fit a polynomial in n with coefficients ≥ 0 to the times, by relative least squares.

    >>> [round(x, 6) for x in fit([100, 200, 400], [3.0, 5.0, 9.0], 1)]
    [1.0, 0.02]
    """
    n, t = np.asarray(lengths, dtype=float), np.asarray(times, dtype=float)
    columns = np.stack([n**p for p in range(degree + 1)], axis=1) / t[:, None]
    active = list(range(degree + 1))
    while True:
        solution, *_ = np.linalg.lstsq(columns[:, active], np.ones(len(n)), rcond=None)
        if (solution >= 0).all():
            break
        active.remove(active[int(np.argmin(solution))])
    found = np.zeros(degree + 1)
    found[active] = solution
    return tuple(float(x) for x in found)


def crossover(linear: Sequence[float], softmax: Sequence[float]) -> float | None:
    """Return the length from which the linear fit is below the quadratic; None if above 10⁶.

    >>> crossover((1.0, 0.0), (0.0, 0.0, 1e-4))
    100.0
    """
    a, b = softmax[0] - linear[0], softmax[1] - linear[1]
    c = softmax[2]
    if c <= 0:
        root = -a / b if b > 0 else math.inf
    else:
        inside = b * b - 4 * a * c
        root = (-b + math.sqrt(inside)) / (2 * c) if inside >= 0 else 1.0
    return max(1.0, root) if root <= 1e6 else None


def _arrays(heads: int, n: int, d: int, width: int) -> list[Array]:
    rng = np.random.default_rng([0, *b"timing"])
    return [rng.standard_normal((heads, n, w), dtype=np.float32) for w in (d, d, width)]
