"""Error against the window: how many near tokens need exact weights."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from kerneltrick._arrays import Array
from kerneltrick.analysis._blocks import Floats, blocks, check_problem, repeated
from kerneltrick.analysis._fitted import Setting, has_window
from kerneltrick.analysis._sampled import sampled_rows
from kerneltrick.attention import Dial

WINDOWS = (0, 1, 2, 4, 8, 16, 32, 64, 128, 256)
SINKS = 1  # the first token, to which trained models give much weight
BEST = 2  # number of maps with a curve, besides the window alone


def window_lengths(n: int) -> tuple[int, ...]:
    """Return the windows that leave some tokens to the map."""
    return tuple(w for w in WINDOWS if w <= n // 2)


def setting_at(setting: Setting, window: int) -> Setting:
    """Return the map with an exact window and first token; window 0 is the map alone."""
    sinks = SINKS if window or is_window_alone(setting) else 0
    if isinstance(setting, Dial):
        return Dial(setting.feature_map, window, sinks)
    return setting.turned(window=window, sinks=sinks)


def is_window_alone(setting: Setting) -> bool:
    return isinstance(setting, Dial) and not setting.feature_map.has_features


def best_settings(errors: Sequence[tuple[float, Setting]]) -> list[int]:
    """Return the indices of the best maps that were compared without a window."""
    alone = [
        (error, place)
        for place, (error, setting) in enumerate(errors)
        if not (has_window(setting) or math.isnan(error) or is_window_alone(setting))
    ]
    return [place for _, place in sorted(alone)[:BEST]]


def head_errors(
    q: Array,
    k: Array,
    v: Array,
    dial: Dial,
    causal: bool,
    softmax_scale: float,
    seed: int,
    scale: float | None = None,
) -> tuple[Floats, Floats]:
    """Return ‖O − O_softmax‖² and ‖O_softmax‖² of each head; above n = 2048 on 512 random rows."""
    problem = check_problem("head_errors", q, k, v, dial, causal, scale, softmax_scale)
    lost, size = np.zeros(problem.q.shape[1]), np.zeros(problem.q.shape[1])
    values = repeated(problem.v[0], problem.groups)
    for block in blocks(problem, only=sampled_rows(problem.q.shape[2], seed)):
        seen = values[:, : block.weights.shape[-1]]
        softmax = block.softmax @ seen
        difference = block.weights @ seen - softmax
        defined = block.defined[..., None]
        lost += np.sum(np.where(defined, difference, 0.0) ** 2, axis=(-2, -1))
        size += np.sum(np.where(defined, softmax, 0.0) ** 2, axis=(-2, -1))
    return lost, size
