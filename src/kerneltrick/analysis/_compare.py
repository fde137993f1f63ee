"""Maps against softmax on the heads of a model: quality, limit, curves, cost and a verdict."""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kerneltrick import maps
from kerneltrick._version import __version__
from kerneltrick.analysis import _curves as curves
from kerneltrick.analysis._blocks import WHOLE_UP_TO, Floats
from kerneltrick.analysis._data import AttentionData
from kerneltrick.analysis._fitted import FittedMaps, Setting, of_heads, read_setting, scale_of
from kerneltrick.analysis._limit import Limit, weight_limit
from kerneltrick.analysis._quality import analyze_map, state_bytes
from kerneltrick.analysis._sampled import SAMPLED_ROWS
from kerneltrick.analysis._store import Store, run_key
from kerneltrick.analysis._timing import (
    baseline,
    measure_linear,
    measure_softmax,
    other_work,
    timing,
    timing_lengths,
)
from kerneltrick.analysis._types import (
    FORMAT,
    Comparison,
    Curve,
    CurvePoint,
    DataInfo,
    HeadMetrics,
    MapReport,
    SoftmaxHead,
    SoftmaxReport,
    Timing,
    WindowCurve,
    WindowPoint,
    mean,
    number,
)
from kerneltrick.analysis._verdict import verdict
from kerneltrick.analysis._windows import (
    BEST,
    chosen_settings,
    head_errors,
    is_window_alone,
    setting_at,
    window_lengths,
)
from kerneltrick.attention import Dial

ProgressReport = Callable[[str, int, int], None]  # (what is done now, pieces done, pieces in all)


def compare(
    data: AttentionData,
    feature_maps: Iterable[maps.MapLike | Dial | FittedMaps],
    *,
    causal: bool | None = None,
    scale: float | None = None,
    seed: int = 0,
    measure: bool = True,
    progress: ProgressReport | None = None,
    resume: Path | None = None,
) -> Comparison:
    """Every map on every head of `data`, against softmax(s·QKᵀ)V.

    A map may have a window beside it, as text `elu@window=16,sinks=1`; `softmax@window=16,sinks=1`
    is the window alone. Maps fitted to these heads are taken too, or the name of their file,
    `maps.safetensors` or `maps.safetensors@window=8`; not on tokens that they were fitted to.

    `causal` and `scale` are those of the data unless given; without either, full and 1/√d.
    `measure=False` leaves out what depends on the machine. With a path `resume`, finished pieces
    are kept there until the end, and a run that was stopped goes on.

    >>> from kerneltrick.analysis import sample
    >>> data = sample().select(layers=[0], heads=[3])
    >>> result = compare(data, ["elu", "taylor:order=2"], measure=False)
    >>> [row.map for row in result.maps], result.data.n
    (['elu', 'taylor:order=2'], 128)
    """
    chosen = [read_setting(text) for text in feature_maps]
    return _Run(data, chosen, causal, scale, seed, measure, progress, resume).result()


@dataclasses.dataclass
class _Head:
    layer: int  # its place, not its number
    head: int
    q: Floats  # (1, n, d)
    k: Floats
    v: Floats


class _Run:
    """One comparison: pieces of work, each done once and kept in the store."""

    def __init__(
        self,
        data: AttentionData,
        chosen: list[Setting],
        causal: bool | None,
        scale: float | None,
        seed: int,
        measure: bool,
        progress: ProgressReport | None,
        resume: Path | None,
    ) -> None:
        self.data, self.notes = data.sanitized()
        self.maps = chosen
        self.causal = bool(data.causal) if causal is None else causal
        given = data.scale if scale is None else scale
        self.scale = 1 / math.sqrt(data.q.shape[-1]) if given is None else given
        self.seed, self.measure = seed, measure
        for setting in chosen:
            if isinstance(setting, FittedMaps):
                setting.check_serves(self.data)
                self.notes += setting.notes(self.causal, self.scale, data.q.shape[-1])
        self.heads = [self._head(i, j) for i, j in self._usable()]
        if not self.heads:
            raise ValueError("no head is left to compare: " + "; ".join(self.notes))
        self.families = curves.families(data.q.shape[-1])
        parts = (__version__, self.causal, self.scale, seed, measure, *map(_text, chosen))
        key = run_key(*parts, self.data.q, self.data.k, self.data.v) if resume else ""
        self.store = Store(resume, key)
        self.progress = progress
        self.done = 0
        points = sum(map(len, self.families.values()))
        lengths = window_lengths(min(self.data.q.shape[2], self.data.k.shape[2]))
        self.windows = lengths if self.data.q.shape[2] == self.data.k.shape[2] else ()
        self.pieces = len(self.heads) * (2 + len(chosen)) + points
        self.pieces += (1 + len(chosen)) if measure else 0
        alone = sum(not (setting.window or setting.sinks) for setting in chosen)
        self.pieces += (1 + min(BEST, alone)) * len(self.windows)

    def _usable(self) -> list[tuple[int, int]]:
        excluded = set(self.data.excluded)
        return [
            (i, j)
            for i, layer in enumerate(self.data.layers)
            for j, head in enumerate(self.data.heads)
            if (layer, head) not in excluded
        ]

    def _head(self, i: int, j: int) -> _Head:
        shared = j // self.data.groups
        q, k, v = self.data.q[i, j], self.data.k[i, shared], self.data.v[i, shared]
        return _Head(i, j, *(x[None].astype(np.float64) for x in (q, k, v)))

    def _piece(self, what: str, key: str, work: Callable[[], Any]) -> Any:
        """The result of a piece of work: from the store, or done now."""
        if self.progress is not None:
            self.progress(what, self.done, self.pieces)
        value = self.store.get(key)
        if value is None:
            value = work()
            self.store.put(key, value)
        self.done += 1
        return value

    def result(self) -> Comparison:
        limits, softmax_heads = self._limits()
        uniform = self._map(Dial(maps.get(_uniform)), "uniform", limits)
        reports = [self._map(setting, str(setting), limits) for setting in self.maps]
        found_curves = self._curves(limits)
        windows = self._windows(reports)
        softmax_ms, timings, noisy = self._timings()
        reports = [
            dataclasses.replace(
                report,
                crossover=None if t is None else t.crossover,
                ms_per_1000_tokens=math.nan if t is None else _per_1000(t.lengths, t.linear_ms),
            )
            for report, t in zip(reports, timings, strict=True)
        ]
        shown = _shown_timing(reports, timings)
        lengths = timing_lengths(self.data.q.shape[1])
        comparison = Comparison(
            format=FORMAT,
            version=__version__,
            data=self._info(),
            softmax=SoftmaxReport(
                ms_per_1000_tokens=_per_1000(lengths, softmax_ms) if softmax_ms else math.nan,
                cache_bytes=int(self.data.k[0].nbytes + self.data.v[0].nbytes),
                heads=softmax_heads,
            ),
            uniform=uniform,
            maps=tuple(reports),
            curves=found_curves,
            windows=windows,
            timing=shown,
            verdict=verdict(reports, uniform, self._grid(), windows, None if noisy else shown),
        )
        if self.progress is not None:
            self.progress("done", self.pieces, self.pieces)
        return comparison

    def _limits(self) -> tuple[list[Limit], tuple[tuple[SoftmaxHead | None, ...], ...]]:
        limits = []
        rows: list[list[SoftmaxHead | None]] = [
            [None] * len(self.data.heads) for _ in self.data.layers
        ]
        for head in self.heads:
            name = self._name(head)

            def work(head: _Head = head) -> Any:
                limit = weight_limit(head.q[0], head.k[0], self.scale, self.causal, self.seed)
                look = analyze_softmax(head.q[0], head.k[0], self.scale, self.causal)
                return {
                    "tails": [t.tolist() for t in limit.tails],
                    "entries": limit.entries,
                    "kind": limit.kind,
                    "rank": None if math.isnan(limit.effective_rank) else limit.effective_rank,
                    "entropy": look[0],
                    "top1": look[1],
                }

            found = self._piece(f"limit of head {name}", f"limit {name}", work)
            tails = tuple(np.array(t) for t in found["tails"])
            rank = number(found["rank"])
            limits.append(Limit(tails, found["entries"], found["kind"], rank))
            rows[head.layer][head.head] = SoftmaxHead(found["entropy"], rank, found["top1"])
        return limits, tuple(tuple(row) for row in rows)

    def _map(self, setting: Setting, text: str, limits: Sequence[Limit]) -> MapReport:
        d, n = self.data.q.shape[-1], self.data.k.shape[2]
        layer = self._layer(setting, self.data.groups)
        m = layer.feature_map.dim(d)
        rows: list[list[HeadMetrics | None]] = [
            [None] * len(self.data.heads) for _ in self.data.layers
        ]
        for head, limit in zip(self.heads, limits, strict=True):

            def work(head: _Head = head, limit: Limit = limit) -> Any:
                dial = of_heads(setting, [self._numbers(head)])
                quality = analyze_map(
                    head.q, head.k, head.v, dial, causal=self.causal,
                    scale=scale_of(setting), softmax_scale=self.scale, seed=self.seed,
                )  # fmt: skip
                near = setting.window or setting.sinks or is_window_alone(setting)
                return HeadMetrics.of(quality, None if near else limit, m).to_dict()

            name = self._name(head)
            found = self._piece(f"{text} on head {name}", f"{text} {name}", work)
            rows[head.layer][head.head] = HeadMetrics.from_dict(found)
        kept = [metrics for row in rows for metrics in row if metrics is not None]
        return MapReport(
            map=text,
            features=m,
            sign=layer.feature_map.sign,
            state_bytes=state_bytes(layer, self.data.k[0], self.data.v[0], n),
            ms_per_1000_tokens=math.nan,
            crossover=None,
            summary=HeadMetrics.summary(kept),
            heads=tuple(tuple(row) for row in rows),
        )

    def _curves(self, limits: Sequence[Limit]) -> tuple[Curve, ...]:
        q, k, v = (np.concatenate([getattr(head, side) for head in self.heads]) for side in "qkv")
        found = []
        for family, texts in self.families.items():
            points = []
            for text in texts:

                def work(text: str = text) -> Any:
                    mse, error = curves.errors(q, k, v, text, self.causal, self.scale, self.seed)
                    return [_plain(mse), _plain(error)]

                mse, error = self._piece(f"curve: {text}", f"curve {text}", work)
                m = maps.get(text).dim(q.shape[-1])
                bound = curves.mean_bound(limits, m)
                points.append(CurvePoint(text, m, number(error), number(mse), bound))
            found.append(Curve(family, tuple(points)))
        return tuple(found)

    def _windows(self, reports: Sequence[MapReport]) -> tuple[WindowCurve, ...]:
        q, k, v = (np.concatenate([getattr(head, side) for head in self.heads]) for side in "qkv")
        errors = [r.summary.output_error for r in reports]
        found = []
        numbers = [self._numbers(head) for head in self.heads]
        for chosen in chosen_settings(list(zip(errors, self.maps, strict=True))):
            points = []
            for window in self.windows:
                setting = setting_at(chosen, window)

                def work(setting: Setting = setting) -> Any:
                    sums = head_errors(
                        q, k, v, of_heads(setting, numbers), self.causal, self.scale, self.seed,
                        scale_of(setting),
                    )  # fmt: skip
                    return [x.tolist() for x in sums]

                lost, size = self._piece(f"window: {setting}", f"window {setting}", work)
                points.append(self._window_point(window, str(setting), lost, size))
            found.append(WindowCurve(str(chosen), tuple(points)))
        return tuple(found)

    def _window_point(
        self, window: int, text: str, lost: Sequence[float], size: Sequence[float]
    ) -> WindowPoint:
        grid = [[math.nan] * len(self.data.heads) for _ in self.data.layers]
        for head, wrong, right in zip(self.heads, lost, size, strict=True):
            grid[head.layer][head.head] = math.sqrt(wrong / right) if right > 0 else math.nan
        total = sum(size)
        return WindowPoint(
            window=window,
            map=text,
            output_error=mean([error for row in grid for error in row]),
            whole_error=math.sqrt(sum(lost) / total) if total > 0 else math.nan,
            heads=tuple(tuple(row) for row in grid),
        )

    def _timings(self) -> tuple[list[float] | None, list[Timing | None], bool]:
        """Times of softmax, those of each map, and whether others were at work meanwhile."""
        if not self.measure:
            return None, [None] * len(self.maps), False
        heads, d, width = self.data.q.shape[1], self.data.q.shape[-1], self.data.v.shape[-1]
        others, start = other_work(), time.perf_counter()
        work = functools.partial(measure_softmax, heads, d, width, self.causal)
        longest = timing_lengths(heads)[-1]  # depends on the core, as the baseline does
        softmax = self._piece("time of softmax", f"time {baseline()}", work)
        found: list[Timing | None] = []
        for setting in self.maps:
            timed = dial = self._layer(setting)
            if isinstance(dial.feature_map, maps.Cosformer):
                # of the same cost, able to serve these lengths
                longer = maps.Cosformer(max(dial.feature_map.horizon, longest))
                timed = dataclasses.replace(dial, feature_map=longer)
            work = functools.partial(measure_linear, timed, heads, d, width, self.causal)
            linear = self._piece(f"time of {setting}", f"time {setting} up to {longest}", work)
            found.append(timing(str(setting), heads, linear, softmax))
        noisy = other_work() - others > 0.2 * (time.perf_counter() - start) + 0.1
        if noisy:
            self.notes.append("other processes were at work during the timing: it means little")
        return softmax, found, noisy

    def _layer(self, setting: Setting, step: int = 1) -> Dial:
        """The dial of the first layer, for its query heads, or for each `step`th of them."""
        return of_heads(setting, [(self.data.layers[0], j) for j in self.data.heads[::step]])

    def _numbers(self, head: _Head) -> tuple[int, int]:
        return self.data.layers[head.layer], self.data.heads[head.head]

    def _name(self, head: _Head) -> str:
        return f"{self.data.layers[head.layer]}.{self.data.heads[head.head]}"

    def _grid(self) -> list[list[str]]:
        return [[f"{layer}.{head}" for head in self.data.heads] for layer in self.data.layers]

    def _info(self) -> DataInfo:
        notes = list(self.notes)
        n = max(self.data.q.shape[2], self.data.k.shape[2])
        if n > WHOLE_UP_TO:
            notes.append(
                f"as n is above {WHOLE_UP_TO}: metrics are summed in float32; rank correlation, "
                f"float32 range, curves and the limit look at {SAMPLED_ROWS} seeded rows, and the "
                f"limit is an estimate"
            )
        if self.causal:
            notes.append("weights are compared over the lower triangle, j ≤ i")
        return DataInfo(
            source=self.data.source,
            layers=self.data.layers,
            heads=self.data.heads,
            kv_heads=int(self.data.k.shape[1]),
            n=int(self.data.q.shape[2]),
            d=int(self.data.q.shape[3]),
            value_width=int(self.data.v.shape[3]),
            causal=self.causal,
            scale=self.scale,
            dtype=str(self.data.q.dtype),
            tokens=self.data.tokens,
            seed=self.seed,
            notes=tuple(notes),
        )


def analyze_softmax(q: Floats, k: Floats, scale: float, causal: bool) -> tuple[float, float]:
    """Mean entropy of the softmax rows of one head, and the mean of their largest weight."""
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


def _text(setting: Setting) -> str:
    """What tells a setting from others, weights included."""
    return str(setting) if isinstance(setting, Dial) else f"{setting} {setting.digest}"


def _uniform(x: Floats) -> Floats:
    """φ = 1: every key weighs the same."""
    return np.ones_like(x[..., :1])


def _shown_timing(reports: Sequence[MapReport], timings: Sequence[Timing | None]) -> Timing | None:
    """The timing to draw and to speak of: of the map that comes closest to softmax."""
    errors = [math.inf if math.isnan(e := r.summary.output_error) else e for r in reports]
    return timings[errors.index(min(errors))]


def _per_1000(lengths: Sequence[int], times: Sequence[float]) -> float:
    """Milliseconds per 1000 tokens at the longest length measured."""
    return times[-1] * 1000 / lengths[-1]


def _plain(x: float) -> float | str | None:
    if math.isnan(x):
        return None
    return "inf" if math.isinf(x) else x
