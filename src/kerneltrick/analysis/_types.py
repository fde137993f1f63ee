"""What a comparison says, as frozen values."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kerneltrick.analysis._limit import Limit
from kerneltrick.analysis._quality import MapQuality
from kerneltrick.analysis._result import Result

FORMAT = "kerneltrick.compare/3"


@dataclasses.dataclass(frozen=True)
class HeadMetrics(Result):
    """One map against softmax on one head, or the summary of many heads."""

    mse: float
    max_diff: float
    correlation: float
    kl: float
    total_variation: float
    top1_agreement: float
    top8_agreement: float
    entropy: float
    rank_correlation: float
    output_error: float  # ‖O − O_softmax‖ / ‖O_softmax‖; of many heads the mean
    whole_error: float  # the same of all heads' outputs together, so that large ones count for more
    output_energy: float  # ‖O_softmax‖²
    output_cosine: float
    smallest_normalizer: float
    condition_number: float
    negative_fraction: float
    overflows: int
    underflows: int
    float32_error: float
    undefined_rows: int
    gradient_ratio: float
    dead_gradients: float
    limit_mse: float  # the least MSE of any map with as many features
    limit_kind: str  # "bound" or "estimate"
    times_limit: float  # mse / limit_mse; NaN where the limit is 0

    @staticmethod
    def of(quality: MapQuality, limit: Limit | None, m: int) -> HeadMetrics:
        """The metrics of a head, with the limit for a map of m features.

        With exact weights for near tokens there is no such limit.
        """
        values = {**vars(quality.weights), **vars(quality)}
        values["output_error"] = values["whole_error"] = quality.output_relative_error
        values["undefined_rows"] = quality.weights.undefined_rows
        bound = math.nan if limit is None else limit.mse(m)
        values |= {
            "limit_mse": bound,
            "limit_kind": "bound" if limit is None else limit.kind,
            "times_limit": quality.weights.mse / bound if bound > 0 else math.nan,
        }
        return HeadMetrics(**{f.name: values[f.name] for f in dataclasses.fields(HeadMetrics)})

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> HeadMetrics:
        """Back from `to_dict`."""
        return HeadMetrics(**{f.name: number(values[f.name]) for f in _FIELDS})

    @staticmethod
    def summary(heads: Iterable[HeadMetrics]) -> HeadMetrics:
        """Means over heads; of normaliser, condition and difference the worst; sums of counts."""
        found = list(heads)
        special: dict[str, Callable[[list[Any]], Any]] = {
            "max_diff": max,
            "condition_number": max,
            "smallest_normalizer": min,
            "output_energy": sum,
            "overflows": sum,
            "underflows": sum,
            "undefined_rows": sum,
        }
        values: dict[str, Any] = {}
        for field in _FIELDS:
            column = [getattr(head, field.name) for head in found]
            if field.name == "limit_kind":
                values[field.name] = "estimate" if "estimate" in column else "bound"
            elif field.name in special:
                values[field.name] = special[field.name](column) if column else math.nan
            else:
                values[field.name] = mean(column)
        bound = values["limit_mse"]
        judged = [head for head in found if not math.isnan(head.output_error)]
        lost = sum(head.output_error**2 * head.output_energy for head in judged)
        total = sum(head.output_energy for head in judged)
        values["whole_error"] = math.sqrt(lost / total) if total > 0 else math.nan
        values["times_limit"] = values["mse"] / bound if bound > 0 else math.nan
        return HeadMetrics(**values)


_FIELDS = dataclasses.fields(HeadMetrics)


@dataclasses.dataclass(frozen=True)
class SoftmaxHead(Result):
    """What the softmax weights of one head are like."""

    entropy: float
    effective_rank: float
    top1_weight: float


@dataclasses.dataclass(frozen=True)
class SoftmaxReport(Result):
    ms_per_1000_tokens: float
    cache_bytes: int  # keys and values of all n tokens of a layer, which softmax must remember
    heads: tuple[tuple[SoftmaxHead | None, ...], ...]


@dataclasses.dataclass(frozen=True)
class MapReport(Result):
    """One map on all heads."""

    map: str
    features: int
    sign: str
    state_bytes: int  # of one layer, all heads, whatever n
    ms_per_1000_tokens: float
    crossover: float | None  # the length from which it is faster than softmax on this machine
    summary: HeadMetrics
    heads: tuple[tuple[HeadMetrics | None, ...], ...]  # None where the data held NaN


@dataclasses.dataclass(frozen=True)
class CurvePoint(Result):
    map: str
    features: int
    output_error: float
    mse: float
    limit_mse: float


@dataclasses.dataclass(frozen=True)
class Curve(Result):
    """Error against m within one family of maps."""

    family: str
    points: tuple[CurvePoint, ...]


@dataclasses.dataclass(frozen=True)
class WindowPoint(Result):
    """A map with so many near tokens exact, and the first token too; window 0: the map alone."""

    window: int
    map: str  # with its window, as text
    output_error: float  # mean over heads
    whole_error: float  # of all heads' outputs together
    heads: tuple[tuple[float, ...], ...]  # output errors; NaN where there is none


@dataclasses.dataclass(frozen=True)
class WindowCurve(Result):
    """Error against the window beside one map; beside `softmax`, the window alone."""

    map: str
    points: tuple[WindowPoint, ...]


@dataclasses.dataclass(frozen=True)
class Timing(Result):
    """Measured times, their fits, and where they meet."""

    map: str
    baseline: str  # what softmax attention was timed as
    lengths: tuple[int, ...]
    linear_ms: tuple[float, ...]
    softmax_ms: tuple[float, ...]
    linear_fit: tuple[float, ...]  # a + b·n
    softmax_fit: tuple[float, ...]  # a + b·n + c·n²
    crossover: float | None  # None where linear attention does not win


@dataclasses.dataclass(frozen=True)
class DataInfo(Result):
    source: str
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    kv_heads: int
    n: int
    d: int
    value_width: int
    causal: bool
    scale: float
    dtype: str
    tokens: tuple[str, ...] | None
    seed: int
    notes: tuple[str, ...]


@dataclasses.dataclass(frozen=True)
class Comparison(Result):
    """Maps against softmax on the same heads: what is lost, what is gained on this machine."""

    format: str
    version: str
    data: DataInfo
    softmax: SoftmaxReport
    uniform: MapReport  # every token weighs the same: what looking at nothing costs
    maps: tuple[MapReport, ...]
    curves: tuple[Curve, ...]
    windows: tuple[WindowCurve, ...]
    timing: Timing | None
    verdict: str

    def _repr_html_(self) -> str:
        """A small table for notebooks."""
        names = ("output_error", "whole_error", "correlation", "mse", "times_limit")
        head = "".join(f"<th>{name.replace('_', ' ')}</th>" for name in ("map", "m", *names))
        rows = "".join(
            f"<tr><td>{html.escape(row.map)}</td><td>{row.features}</td>"
            + "".join(f"<td>{getattr(row.summary, name):.3g}</td>" for name in names)
            + "</tr>"
            for row in (self.uniform, *self.maps)
        )
        return (
            f"<p>{html.escape(self.verdict)}</p>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        )


def number(value: Any) -> Any:
    """A number back from JSON: null is NaN, "inf" infinity."""
    if value is None:
        return math.nan
    if value in ("inf", "-inf"):
        return float(value)
    return value


def mean(values: Sequence[float]) -> float:
    """The mean of those that are numbers; NaN if none is."""
    good = [x for x in values if not math.isnan(x)]
    return sum(good) / len(good) if good else math.nan
