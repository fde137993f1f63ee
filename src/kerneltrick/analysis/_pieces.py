"""The pieces of work of a comparison; each returns numbers that JSON can hold."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from kerneltrick.analysis import _curves as curves
from kerneltrick.analysis._blocks import Floats
from kerneltrick.analysis._data import AttentionData
from kerneltrick.analysis._fitted import Setting, has_window, of_heads, scale_of
from kerneltrick.analysis._limit import Limit, weight_limit
from kerneltrick.analysis._quality import analyze_map
from kerneltrick.analysis._types import HeadMetrics
from kerneltrick.analysis._windows import head_errors, is_window_alone, setting_at


@dataclasses.dataclass(frozen=True)
class ComparisonInputs:
    """What all pieces share; it is sent to each worker once."""

    data: AttentionData
    settings: Sequence[Setting]
    heads: Sequence[tuple[int, int]]  # indices of layer and query head that can be used
    causal: bool
    scale: float
    seed: int

    def head(self, place: tuple[int, int]) -> tuple[Floats, Floats, Floats]:
        """Return q, k and v (1, n, d) of one head in float64."""
        i, j = place
        shared = j // self.data.groups
        q, k, v = self.data.q[i, j], self.data.k[i, shared], self.data.v[i, shared]
        return q[None].astype(np.float64), k[None].astype(np.float64), v[None].astype(np.float64)

    def all_heads(self) -> tuple[Floats, Floats, Floats]:
        """Return q, k and v (heads, n, d) of all usable heads."""
        q, k, v = zip(*(self.head(place) for place in self.heads), strict=True)
        return np.concatenate(q), np.concatenate(k), np.concatenate(v)

    def numbers(self, place: tuple[int, int]) -> tuple[int, int]:
        return self.data.layers[place[0]], self.data.heads[place[1]]


def limit_piece(problem: ComparisonInputs, place: tuple[int, int]) -> Any:
    """Compute the limit for any map on a head, and properties of its softmax."""
    q, k, _ = problem.head(place)
    limit = weight_limit(q[0], k[0], problem.scale, problem.causal, problem.seed)
    entropy, top = analyze_softmax(q[0], k[0], problem.scale, problem.causal)
    return {
        "tails": [t.tolist() for t in limit.tails],
        "entries": limit.entries,
        "kind": limit.kind,
        "rank": None if math.isnan(limit.effective_rank) else limit.effective_rank,
        "entropy": entropy,
        "top1": top,
    }


def map_piece(problem: ComparisonInputs, which: int, place: tuple[int, int], limit: Limit) -> Any:
    """Compare a map on a head."""
    setting = problem.settings[which]
    dial = of_heads(setting, [problem.numbers(place)], problem.data.groups)
    q, k, v = problem.head(place)
    quality = analyze_map(
        q,
        k,
        v,
        dial,
        causal=problem.causal,
        scale=scale_of(setting),
        softmax_scale=problem.scale,
        seed=problem.seed,
    )
    near = has_window(setting) or is_window_alone(setting)
    m = dial.feature_map.dim(q.shape[-1])
    return HeadMetrics.of(quality, None if near else limit, m).to_dict()


def curve_piece(problem: ComparisonInputs, text: str) -> Any:
    """Compare a map of a family on all heads."""
    q, k, v = problem.all_heads()
    found = curves.errors(q, k, v, text, problem.causal, problem.scale, problem.seed)
    return [_plain(x) for x in found]


def window_piece(problem: ComparisonInputs, which: int, window: int) -> Any:
    """Compare a map with a window on all heads."""
    setting = setting_at(problem.settings[which], window)
    places = [problem.numbers(place) for place in problem.heads]
    dial = of_heads(setting, places, problem.data.groups)
    q, k, v = problem.all_heads()
    sums = head_errors(
        q, k, v, dial, problem.causal, problem.scale, problem.seed, scale_of(setting)
    )
    return [x.tolist() for x in sums]


def analyze_softmax(q: Floats, k: Floats, scale: float, causal: bool) -> tuple[float, float]:
    """Return the mean entropy of the softmax rows of one head, and their mean largest weight."""
    entropy = top = 0.0
    rows = max(1, (1 << 19) // len(k))
    for first in range(0, len(q), rows):
        chosen = np.arange(first, min(first + rows, len(q)))
        scores = scale * q[chosen] @ k.T
        if causal:
            scores = np.where(np.arange(len(k)) <= chosen[:, None], scores, -math.inf)
        scores -= scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores)
        total = weights.sum(axis=-1)
        scores[weights == 0] = 0.0
        entropy += float(np.sum(np.log(total) - np.sum(weights * scores, axis=-1) / total))
        top += float(np.sum(1 / total))
    return entropy / len(q), top / len(q)


def _plain(x: float) -> float | str | None:
    if math.isnan(x):
        return None
    return "inf" if math.isinf(x) else x
