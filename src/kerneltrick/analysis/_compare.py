"""Compare maps with softmax on the heads of a model: errors, limits, curves, times, verdict."""

from __future__ import annotations

import concurrent.futures
import dataclasses
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kerneltrick import maps
from kerneltrick._executor import Piece, Team, Work
from kerneltrick._progress import ProgressReport
from kerneltrick._version import __version__
from kerneltrick.analysis import _curves as curves
from kerneltrick.analysis._blocks import WHOLE_UP_TO, Floats
from kerneltrick.analysis._data import AttentionData
from kerneltrick.analysis._fitted import FittedMaps, Setting, has_window, of_heads, read_setting
from kerneltrick.analysis._limit import Limit
from kerneltrick.analysis._metrics import mean
from kerneltrick.analysis._pieces import (
    ComparisonInputs,
    curve_piece,
    limit_piece,
    map_piece,
    window_piece,
)
from kerneltrick.analysis._quality import state_bytes
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
    number,
)
from kerneltrick.analysis._verdict import verdict
from kerneltrick.analysis._windows import (
    BEST,
    best_settings,
    setting_at,
    window_lengths,
)
from kerneltrick.attention import Dial


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
    executor: concurrent.futures.Executor | None = None,
) -> Comparison:
    """Compare every map on every head of `data` with softmax(s·QKᵀ)V.

    A map may have a window: `elu@window=16,sinks=1`; `softmax@window=16,sinks=1` is the window
    alone. Maps fitted to these heads are accepted too, also by the name of their file,
    `maps.safetensors` or `maps.safetensors@window=8`, but not on the tokens they were fitted to.

    `causal` and `scale` default to those of the data, else to full attention and 1/√d.
    `measure=False` skips the timing, which depends on the machine. With a path `resume`, finished
    pieces are saved there, and an interrupted run continues. With an `executor`, such as
    `Processes(4)` or that of a Dask client, its workers do everything except the timing.

    >>> from kerneltrick.analysis import sample
    >>> data = sample().select(layers=[0], heads=[3])
    >>> result = compare(data, ["elu", "taylor:order=2"], measure=False)
    >>> [row.map for row in result.maps], result.data.n
    (['elu', 'taylor:order=2'], 128)
    """
    chosen = [read_setting(text) for text in feature_maps]
    return _CompareRun(
        data, chosen, causal, scale, seed, measure, progress, resume, executor
    ).result()


class _CompareRun:
    """One comparison: pieces of work that are done once and saved in the store."""

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
        executor: concurrent.futures.Executor | None,
    ) -> None:
        self.maps = chosen
        self.causal = bool(data.causal) if causal is None else causal
        given = data.scale if scale is None else scale
        self.scale = 1 / math.sqrt(data.q.shape[-1]) if given is None else given
        self.data, self.notes = data.sanitized(self.scale)
        self.seed, self.measure = seed, measure
        for setting in chosen:
            if isinstance(setting, FittedMaps):
                setting.check_serves(self.data)
                self.notes += setting.notes(self.causal, self.scale, data.q.shape[-1])
            elif setting.by_head and data.heads == tuple(range(data.q.shape[1])):
                setting.groups(data.k.shape[1])  # which checks the heads
        self.heads = self._usable()
        if not self.heads:
            raise ValueError("no head is left to compare: " + "; ".join(self.notes))
        settings = [*chosen, Dial(maps.get(_uniform)), Dial.get("softmax")]
        self.problem = ComparisonInputs(
            self.data, settings, self.heads, self.causal, self.scale, seed
        )
        self.team = Team(self.problem, executor)
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
        alone = sum(not has_window(setting) for setting in chosen)
        self.pieces += (1 + min(BEST, alone)) * len(self.windows)

    def _usable(self) -> list[tuple[int, int]]:
        excluded = set(self.data.excluded)
        return [
            (i, j)
            for i, layer in enumerate(self.data.layers)
            for j, head in enumerate(self.data.heads)
            if (layer, head) not in excluded
        ]

    def _results(self, work: Work, pieces: Sequence[Piece], here: bool = False) -> dict[str, Any]:
        """Return the result of each piece by its key, from the store or computed now."""
        left = {piece.key: piece for piece in pieces if self.store.get(piece.key) is None}
        self.done += len(pieces) - len(left)
        self._tell(left)
        team = Team(self.problem) if here else self.team
        for piece, value in team.results(work, list(left.values())):
            self.store.put(piece.key, value)
            del left[piece.key]
            self.done += 1
            self._tell(left)
        return {piece.key: self.store.get(piece.key) for piece in pieces}

    def _tell(self, left: Mapping[str, Piece]) -> None:
        if self.progress is not None and left:
            self.progress(next(iter(left.values())).what, self.done, self.pieces)

    def result(self) -> Comparison:
        with self.team:
            limits, softmax_heads = self._limits()
            found_curves = self._curves(limits)
            *reports, uniform = self._maps(limits)
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
        told = verdict(reports, uniform, self._grid(), windows, None if noisy else shown)
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
            verdict=str(told),
            headline=told.headline,
            findings=told.findings,
        )
        if self.progress is not None:
            self.progress("done", self.pieces, self.pieces)
        return comparison

    def _limits(self) -> tuple[list[Limit], tuple[tuple[SoftmaxHead | None, ...], ...]]:
        limits = []
        rows: list[list[SoftmaxHead | None]] = [
            [None] * len(self.data.heads) for _ in self.data.layers
        ]
        names = [self._name(place) for place in self.heads]
        pieces = [
            Piece(f"limit {name}", f"limit for head {name}", (place,))
            for name, place in zip(names, self.heads, strict=True)
        ]
        everything = self._results(limit_piece, pieces)
        for (i, j), piece in zip(self.heads, pieces, strict=True):
            found = everything[piece.key]
            tails = tuple(np.array(t) for t in found["tails"])
            rank = number(found["rank"])
            limits.append(Limit(tails, found["entries"], found["kind"], rank))
            rows[i][j] = SoftmaxHead(found["entropy"], rank, found["top1"])
        return limits, tuple(tuple(row) for row in rows)

    def _maps(self, limits: Sequence[Limit]) -> list[MapReport]:
        """Return the report of each map, followed by that of uniform weights."""
        texts = [*map(str, self.maps), "uniform"]
        pieces = [
            [
                Piece(f"{text} {name}", f"{text} on head {name}", (which, place, limit))
                for place, limit in zip(self.heads, limits, strict=True)
                for name in [self._name(place)]
            ]
            for which, text in enumerate(texts)
        ]
        found = self._results(map_piece, [piece for row in pieces for piece in row])
        return [
            self._report(text, self.problem.settings[which], [found[p.key] for p in row])
            for which, (text, row) in enumerate(zip(texts, pieces, strict=True))
        ]

    def _report(self, text: str, setting: Setting, found: Sequence[Any]) -> MapReport:
        d, n = self.data.q.shape[-1], self.data.k.shape[2]
        layer = self._layer(setting, self.data.groups)
        rows: list[list[HeadMetrics | None]] = [
            [None] * len(self.data.heads) for _ in self.data.layers
        ]
        kept = [HeadMetrics.from_dict(values) for values in found]
        for (i, j), metrics in zip(self.heads, kept, strict=True):
            rows[i][j] = metrics
        return MapReport(
            map=text,
            features=layer.feature_map.dim(d),
            sign=layer.feature_map.sign,
            state_bytes=state_bytes(layer, self.data.k[0], self.data.v[0], n),
            ms_per_1000_tokens=math.nan,
            crossover=None,
            summary=HeadMetrics.summary(kept),
            heads=tuple(tuple(row) for row in rows),
        )

    def _curves(self, limits: Sequence[Limit]) -> tuple[Curve, ...]:
        texts = [text for family in self.families.values() for text in family]
        pieces = [Piece(f"curve {text}", f"curve: {text}", (text,)) for text in texts]
        everything = self._results(curve_piece, pieces)
        found = []
        for family, members in self.families.items():
            points = []
            for text in members:
                mse, error = everything[f"curve {text}"]
                m = maps.get(text).dim(self.data.q.shape[-1])
                bound = curves.mean_bound(limits, m)
                points.append(CurvePoint(text, m, number(error), number(mse), bound))
            found.append(Curve(family, tuple(points)))
        return tuple(found)

    def _windows(self, reports: Sequence[MapReport]) -> tuple[WindowCurve, ...]:
        errors = [r.summary.output_error for r in reports]
        chosen = best_settings(list(zip(errors, self.maps, strict=True)))
        chosen += [len(self.problem.settings) - 1]  # the window alone
        texts = {
            (which, window): str(setting_at(self.problem.settings[which], window))
            for which in chosen
            for window in self.windows
        }
        pieces = [
            Piece(f"window {text}", f"window: {text}", place) for place, text in texts.items()
        ]
        everything = self._results(window_piece, pieces)
        found = []
        for which in chosen:
            points = []
            for window in self.windows:
                text = texts[which, window]
                points.append(self._window_point(window, text, *everything[f"window {text}"]))
            found.append(WindowCurve(str(self.problem.settings[which]), tuple(points)))
        return tuple(found)

    def _window_point(
        self, window: int, text: str, lost: Sequence[float], size: Sequence[float]
    ) -> WindowPoint:
        grid = [[math.nan] * len(self.data.heads) for _ in self.data.layers]
        for (i, j), wrong, right in zip(self.heads, lost, size, strict=True):
            grid[i][j] = math.sqrt(wrong / right) if right > 0 else math.nan
        total = sum(size)
        return WindowPoint(
            window=window,
            map=text,
            output_error=mean([error for row in grid for error in row]),
            whole_error=math.sqrt(sum(lost) / total) if total > 0 else math.nan,
            heads=tuple(tuple(row) for row in grid),
        )

    def _timings(self) -> tuple[list[float] | None, list[Timing | None], bool]:
        """Return the times of softmax and of the maps, and whether something disturbed them."""
        if not self.measure:
            return None, [None] * len(self.maps), False
        heads, d, width = self.data.q.shape[1], self.data.q.shape[-1], self.data.v.shape[-1]
        others, start = other_work(), time.perf_counter()
        longest = timing_lengths(heads)[-1]  # depends on the core, like the baseline
        arguments = (heads, d, width, self.causal)
        softmax = self._timed(f"time {baseline()}", "softmax", measure_softmax, *arguments)
        found: list[Timing | None] = []
        for setting in self.maps:
            timed = dial = self._layer(setting)
            if isinstance(dial.feature_map, maps.Cosformer):
                # The same cost, with a horizon that covers these lengths.
                longer = maps.Cosformer(max(dial.feature_map.horizon, longest))
                timed = dataclasses.replace(dial, feature_map=longer)
            key = f"time {setting} up to {longest}"
            linear = self._timed(key, str(setting), measure_linear, timed, *arguments)
            found.append(timing(str(setting), heads, linear, softmax))
        noisy = other_work() - others > 0.2 * (time.perf_counter() - start) + 0.1
        if noisy:
            self.notes.append(
                "other processes were running during the timing, so the times are unreliable"
            )
        return softmax, found, noisy

    def _timed(self, key: str, text: str, measure: Work, *arguments: Any) -> Any:
        """Measure on this machine, never on workers."""
        piece = Piece(key, f"timing {text}", arguments)
        work: Work = lambda problem, *given: measure(*given)  # noqa: E731
        return self._results(work, [piece], here=True)[key]

    def _layer(self, setting: Setting, step: int = 1) -> Dial:
        """Return the dial of the first layer for every `step`-th query head."""
        heads = [(self.data.layers[0], j) for j in self.data.heads[::step]]
        return of_heads(setting, heads, self.data.groups)

    def _name(self, place: tuple[int, int]) -> str:
        return "{}.{}".format(*self.problem.numbers(place))

    def _grid(self) -> list[list[str]]:
        return [[f"{layer}.{head}" for head in self.data.heads] for layer in self.data.layers]

    def _info(self) -> DataInfo:
        notes = list(self.notes)
        n = max(self.data.q.shape[2], self.data.k.shape[2])
        if n > WHOLE_UP_TO:
            notes.append(
                f"because n is above {WHOLE_UP_TO}, metrics are computed in float32; the rank "
                f"correlation, float32 range, curves and limit use {SAMPLED_ROWS} random rows, and "
                f"the limit is an estimate"
            )
        if self.causal:
            notes.append("weights are compared on the lower triangle, j ≤ i")
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


def _text(setting: Setting) -> str:
    """Return a text that identifies a setting, including its weights."""
    return str(setting) if isinstance(setting, Dial) else f"{setting} {setting.digest}"


def _uniform(x: Floats) -> Floats:
    """φ = 1 gives every key the same weight."""
    return np.ones_like(x[..., :1])


def _shown_timing(reports: Sequence[MapReport], timings: Sequence[Timing | None]) -> Timing | None:
    """Return the timing to report: that of the map closest to softmax."""
    errors = [math.inf if math.isnan(e := r.summary.output_error) else e for r in reports]
    return timings[errors.index(min(errors))]


def _per_1000(lengths: Sequence[int], times: Sequence[float]) -> float:
    """Return milliseconds per 1000 tokens at the longest measured length."""
    return times[-1] * 1000 / lengths[-1]
