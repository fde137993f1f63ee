"""The results of a comparison, as frozen values."""

from __future__ import annotations

import dataclasses
import html
import math
from collections.abc import Iterable, Mapping
from typing import Any

from kerneltrick.analysis._limit import Limit
from kerneltrick.analysis._metrics import documented, metric, metrics_of, reduced
from kerneltrick.analysis._quality import MapQuality
from kerneltrick.analysis._result import Result

FORMAT = "kerneltrick.compare/3"


@documented
@dataclasses.dataclass(frozen=True)
class HeadMetrics(Result):
    """One map compared with softmax on one head, or a summary of several heads.

    A are the weights of the map and S those of softmax; O = AV and O_softmax = SV the outputs.
    `limit_kind` is "bound" or "estimate".
    """

    output_error: float = metric(
        "output error",
        "‖O − O_softmax‖ / ‖O_softmax‖",
        "What the next layer gets wrong; the mean over heads.",
    )
    whole_error: float = metric(
        "whole",
        "√(Σ‖O − O_softmax‖² / Σ‖O_softmax‖²)",
        "The output error of all heads together; heads with large outputs count more.",
        title="whole output error",
        reduction="derived",
    )
    output_cosine: float = metric(
        "cosine",
        "mean over rows of cos(o, o_softmax)",
        "Whether outputs point in the same direction.",
        "higher",
    )
    mse: float = metric(
        "MSE",
        "mean of (A − S)²",
        "The mean squared error of the weights.",
        title="MSE of the weights",
    )
    times_limit: float = metric(
        "× limit",
        "MSE / limit_mse",
        "1 means that no map with as many features has a smaller MSE. "
        "Undefined if the limit is 0, and with a window.",
        reduction="derived",
        style="times",
    )
    kl: float = metric(
        "KL",
        "mean over rows of KL(S ‖ A)",
        "Undefined with negative weights, infinite if a weight is 0.",
    )
    total_variation: float = metric(
        "TV",
        "mean over rows of ½ Σ|A − S|",
        "The share of the weight that is in the wrong place.",
        title="total variation",
    )
    top1_agreement: float = metric(
        "top-1",
        "share of rows with the largest weight at the same key",
        "Whether both look at the same token most.",
        "higher",
        title="top-1 agreement",
        style="percent",
    )
    top8_agreement: float = metric(
        "top-8",
        "mean share of common keys among the 8 largest weights",
        "Whether both look at the same eight tokens.",
        "higher",
        title="top-8 agreement",
        style="percent",
    )
    correlation: float = metric(
        "corr.",
        "Pearson correlation of A and S",
        "Does not depend on how peaked the rows are.",
        "higher",
        title="correlation of the weights",
    )
    rank_correlation: float = metric(
        "rank corr.",
        "mean over rows of Spearman's ρ",
        "Whether larger softmax weights get larger weights.",
        "higher",
        title="rank correlation",
    )
    condition_number: float = metric(
        "condition",
        "max over rows of Σ|A| / |ΣA|",
        "1 is safe; a large value means that the normaliser cancels.",
        title="condition number",
        reduction="max",
    )
    negative_fraction: float = metric(
        "negative",
        "share of the weights below 0",
        "Softmax has none.",
        title="share of negative weights",
        style="percent",
    )
    undefined_rows: int = metric(
        "undefined",
        "number of rows whose weights sum to 0",
        "Such rows have no output and are excluded from the averages.",
        title="undefined rows",
        reduction="sum",
        style="count",
    )
    float32_error: float = metric(
        "float32",
        "‖O₃₂ − O₆₄‖ / ‖O₆₄‖",
        "The output error of float32 against float64.",
        title="float32 error",
    )
    gradient_ratio: float = metric(
        "gradient",
        "‖∂/∂q‖ / ‖∂/∂q of softmax‖",
        "Far below 1, queries learn slowly with this map.",
        "none",
        title="gradient ratio",
    )
    dead_gradients: float = metric(
        "dead",
        "share of the entries of ∂/∂q that are exactly 0",
        "These entries do not learn.",
        title="dead gradients",
        style="percent",
    )
    entropy: float = metric(
        "",
        "mean over rows of −Σ A log A",
        "Higher than softmax's means that the map blurs.",
        "none",
        title="entropy",
    )
    max_diff: float = metric("", "max |A − S|", "The largest error of a weight.", reduction="max")
    output_energy: float = metric(
        "",
        "‖O_softmax‖²",
        "The size of the output, by which heads are weighted.",
        "none",
        reduction="sum",
    )
    smallest_normalizer: float = metric(
        "",
        "min over rows of |Σ φ(q)·φ(k)|",
        "In the units of the map; 0 if a row is undefined.",
        "higher",
        reduction="min",
    )
    overflows: int = metric(
        "", "number of features that overflow float32", "", reduction="sum", style="count"
    )
    underflows: int = metric(
        "",
        "number of features that are 0 in float32 but not in float64",
        "",
        reduction="sum",
        style="count",
    )
    limit_mse: float = metric(
        "",
        "the smallest MSE of any map with as many features",
        "A bound, or an estimate for long data.",
        "none",
    )
    limit_kind: str = "bound"

    @staticmethod
    def of(quality: MapQuality, limit: Limit | None, m: int) -> HeadMetrics:
        """Collect the metrics of a head, with the limit for a map of m features.

        Beside a window there is no such limit.
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
        """Restore the metrics from `to_dict`."""
        return HeadMetrics(**{f.name: number(values[f.name]) for f in _FIELDS})

    @staticmethod
    def summary(heads: Iterable[HeadMetrics]) -> HeadMetrics:
        """Summarise heads, each metric by its `reduction`."""
        found = list(heads)
        values: dict[str, Any] = {
            name: reduced(each.reduction, [getattr(head, name) for head in found])
            for name, each in METRICS.items()
        }
        estimated = any(head.limit_kind == "estimate" for head in found)
        values["limit_kind"] = "estimate" if estimated else "bound"
        bound = values["limit_mse"]
        judged = [head for head in found if not math.isnan(head.output_error)]
        lost = sum(head.output_error**2 * head.output_energy for head in judged)
        total = sum(head.output_energy for head in judged)
        values["whole_error"] = math.sqrt(lost / total) if total > 0 else math.nan
        values["times_limit"] = values["mse"] / bound if bound > 0 else math.nan
        return HeadMetrics(**values)


_FIELDS = dataclasses.fields(HeadMetrics)
METRICS = metrics_of(HeadMetrics)


@dataclasses.dataclass(frozen=True)
class SoftmaxHead(Result):
    """Properties of the softmax weights of one head."""

    entropy: float
    effective_rank: float
    top1_weight: float


@dataclasses.dataclass(frozen=True)
class SoftmaxReport(Result):
    ms_per_1000_tokens: float
    cache_bytes: int  # keys and values of all n tokens of a layer
    heads: tuple[tuple[SoftmaxHead | None, ...], ...]


@dataclasses.dataclass(frozen=True)
class MapReport(Result):
    """One map on all heads."""

    map: str
    features: int
    sign: str
    state_bytes: int  # of one layer with all heads, for any n
    ms_per_1000_tokens: float
    crossover: float | None  # length from which it is faster than softmax on this machine
    summary: HeadMetrics
    heads: tuple[tuple[HeadMetrics | None, ...], ...]  # None for heads that were left out


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
    """A map with an exact window and an exact first token; window 0 is the map alone."""

    window: int
    map: str  # with its window, as text
    output_error: float  # mean over heads
    whole_error: float  # of all heads' outputs together
    heads: tuple[tuple[float, ...], ...]  # output errors; NaN where there is none


@dataclasses.dataclass(frozen=True)
class WindowCurve(Result):
    """Error against the length of the window, for one map; for `softmax`, the window alone."""

    map: str
    points: tuple[WindowPoint, ...]


@dataclasses.dataclass(frozen=True)
class Timing(Result):
    """Measured times, the curves fitted to them, and the length where they cross."""

    map: str
    baseline: str  # the softmax implementation that was timed
    lengths: tuple[int, ...]
    linear_ms: tuple[float, ...]
    softmax_ms: tuple[float, ...]
    linear_fit: tuple[float, ...]  # a + b·n
    softmax_fit: tuple[float, ...]  # a + b·n + c·n²
    crossover: float | None  # None if linear attention is never faster


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
    """Maps compared with softmax on the same heads: errors, speed on this machine, a verdict."""

    format: str
    version: str
    data: DataInfo
    softmax: SoftmaxReport
    uniform: MapReport  # the baseline that gives every token the same weight
    maps: tuple[MapReport, ...]
    curves: tuple[Curve, ...]
    windows: tuple[WindowCurve, ...]
    timing: Timing | None
    verdict: str  # the headline and the findings, one line each
    headline: str = ""
    findings: tuple[str, ...] = ()

    def _repr_html_(self) -> str:
        """Return a small table for notebooks."""
        names = ("output_error", "whole_error", "correlation", "mse", "times_limit")
        labels = (METRICS[name].label for name in names)
        head = "".join(f"<th>{label}</th>" for label in ("map", "m", *labels))
        rows = "".join(
            f"<tr><td>{html.escape(row.map)}</td><td>{row.features}</td>"
            + "".join(f"<td>{getattr(row.summary, name):.3g}</td>" for name in names)
            + "</tr>"
            for row in (self.uniform, *self.maps)
        )
        found = "".join(f"<li>{html.escape(finding)}</li>" for finding in self.findings)
        return (
            f"<p>{html.escape(self.headline or self.verdict)}</p><ul>{found}</ul>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        )


def number(value: Any) -> Any:
    """Restore a number from JSON: null is NaN, "inf" is infinity."""
    if value is None:
        return math.nan
    if value in ("inf", "-inf"):
        return float(value)
    return value
