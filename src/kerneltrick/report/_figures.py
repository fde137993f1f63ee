"""The charts of the report as matplotlib figures, for papers (extra `plot`)."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kerneltrick import maps
from kerneltrick._pictures import (
    COLOURS,
    FAINT,
    INK,
    LINE,
    log_axes,
    new_figure,
    picture_style,
    plain_numbers,
    save_figure,
)
from kerneltrick.analysis import METRICS
from kerneltrick.attention import Dial, Far, attention_weights, softmax_attention
from kerneltrick.report._check import check_comparison, check_picture, decode
from kerneltrick.report._labels import place_labels

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Weights = np.ndarray[Any, np.dtype[np.float64]]

RAMP = ("#fafaf7", "#c9ebd6", "#74cdb5", "#38a3a9", "#34749f", "#3d4a86", "#2c2146", "#120a14")


def figures(
    comparison: Mapping[str, Any],
    folder: str | os.PathLike[str],
    *,
    formats: Iterable[str] = ("pdf", "png"),
    layer: int | None = None,
    head: int | None = None,
    feature_maps: Sequence[str] | None = None,
) -> list[Path]:
    """Write the figures weights, pareto, error and timing into `folder`, and return their paths.

    `layer`, `head` and `feature_maps` choose what the picture of the weights shows, by the numbers
    and map texts of the comparison. Figures for which the comparison has no data are skipped.
    """
    drawn = {"weights": weights_figure(comparison, layer, head, feature_maps)}
    drawn["pareto"] = pareto_figure(comparison)
    if comparison["curves"]:
        drawn["error"] = error_figure(comparison)
    if comparison["timing"] is not None:
        drawn["timing"] = timing_figure(comparison)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for name, figure in drawn.items():
        for suffix in formats:
            path = target / f"{name}.{suffix}"
            save_figure(figure, path, dpi=200)
            written.append(path)
    return written


def weights_figure(
    comparison: Mapping[str, Any],
    layer: int | None = None,
    head: int | None = None,
    feature_maps: Sequence[str] | None = None,
) -> Figure:
    """Draw the weights of softmax and of some maps (default: the three best)."""
    check_comparison(comparison)
    check_picture(comparison)
    data = comparison["data"]
    at_layer = _index(data["layers"], layer, "layer")
    at_head = _index(data["heads"], head, "head")
    drawn = {entry["map"]: entry for entry in comparison["picture"]["maps"]}
    if feature_maps is None:
        ranked = sorted(comparison["maps"], key=lambda row: _number(row["summary"]["output_error"]))
        feature_maps = [row["map"] for row in ranked if row["map"] in drawn][:3]
    for text in feature_maps:
        if text not in drawn:
            raise ValueError(f"the comparison has no map {text!r}; it has {', '.join(drawn)}")
    q, k = _head(comparison, at_layer, at_head)
    shared = len(data["heads"]) // data["kv_heads"]
    causal = data["causal"]
    _, softmax = softmax_attention(
        q, k, k, causal=causal, scale=data["scale"], return_weights=True, on_zero="nan"
    )
    shown = {"softmax": softmax}
    for text in feature_maps:
        entry = drawn[text]
        shown[text] = attention_weights(
            q,
            k,
            _dial(entry, data["d"], data["heads"][at_head] // shared),
            causal=causal,
            on_zero="nan",
        )
    hidden = ~np.tri(len(q), dtype=bool) if causal else np.zeros((len(q), len(q)), dtype=bool)
    top = float(np.nanquantile(softmax[~hidden], 0.998))
    with picture_style():
        figure = new_figure(2.3 * len(shown) + 0.7, 2.6)
        axes = figure.subplots(1, len(shown), squeeze=False)[0]
        for place, (text, weights) in zip(axes, shown.items(), strict=True):
            picture = np.where(hidden, np.nan, weights)
            image = place.imshow(picture, cmap=_ramp(), norm=_root(top), interpolation="nearest")
            place.set(title=text, xlabel="key j")
            place.spines[:].set_visible(False)
        axes[0].set_ylabel("query i")
        ticks = [top * share**2 for share in (0, 0.25, 0.5, 0.75, 1)]
        bar = figure.colorbar(image, ax=list(axes), ticks=ticks, extend="max", shrink=0.8, pad=0.02)
        bar.ax.set_yticklabels([f"{tick:.2g}" for tick in ticks])
        bar.set_label("weight")
    return figure


def pareto_figure(comparison: Mapping[str, Any], error: str = "output_error") -> Figure:
    """Draw error against time, one dot per map; with error="mse" also the limit for any map."""
    check_comparison(comparison)
    if error not in ("output_error", "mse"):
        raise ValueError(f"error must be 'output_error' or 'mse', not {error!r}")
    rows = []
    for row in comparison["maps"]:
        cost, value = _number(row["ms_per_1000_tokens"]), _number(row["summary"][error])
        if 0 < cost < math.inf and 0 < value < math.inf:
            rows.append((cost, value, row["map"], _number(row["summary"].get("limit_mse"))))
    rows.sort()
    reference = _number(comparison["softmax"]["ms_per_1000_tokens"])
    with picture_style():
        figure, axes = _axes("ms per 1000 tokens", _label(error), 6.2, 4.0)
        front: list[tuple[float, float]] = []
        for cost, value, _, bound in rows:
            on_front = not front or value < front[-1][1]
            front += [(cost, value)] if on_front else []
            axes.plot(cost, value, "o", color=COLOURS[0], mfc=COLOURS[0] if on_front else "white")
            if error == "mse" and bound > 0:
                axes.plot([cost, cost], [value, bound], color=LINE, lw=0.9, zorder=1)
                axes.plot(cost, bound, "_", color=FAINT, ms=9)
        if reference > 0:
            axes.axvline(reference, color=FAINT, lw=0.8, ls=":", zorder=0)
            axes.annotate(
                "softmax",
                (reference, 1),
                (0, 3),
                xycoords=("data", "axes fraction"),
                textcoords="offset points",
                ha="center",
                color=FAINT,
            )
        if front:
            x, y = zip(*front, strict=True)
            axes.step(x, y, where="post", color=COLOURS[0], lw=1, zorder=1)
            _name_dots(axes, [row[:3] for row in rows])
    return figure


def _name_dots(axes: Axes, rows: Sequence[tuple[float, float, str]]) -> None:
    """Label the dots (x, y, text) of a plot of about 5.4 × 3.4 inches."""
    width, height = 5.4 * 72, 3.4 * 72
    (left, right), (low, high) = axes.get_xlim(), axes.get_ylim()
    places = [
        (
            width * math.log(x / left) / math.log(right / left),
            height * math.log(y / low) / math.log(high / low),
        )
        for x, y, _ in rows
    ]
    offsets = place_labels(places, [text for _, _, text in rows], width, height)
    for (x, y, text), (dx, dy) in zip(rows, offsets, strict=True):
        line = {"arrowstyle": "-", "color": FAINT, "lw": 0.5, "shrinkA": 0, "shrinkB": 3}
        axes.annotate(
            text,
            (x, y),
            (dx, dy),
            textcoords="offset points",
            fontsize=8,
            arrowprops=line if abs(dy + 4) > 4 else None,
        )


def error_figure(comparison: Mapping[str, Any], error: str = "mse") -> Figure:
    """Draw error against the number of features m, one line per family; with the limit for "mse".

    Errors above twice that of uniform weights become triangles at the upper edge.
    """
    check_comparison(comparison)
    limit: dict[int, float] = {}
    uniform = comparison["uniform"]["summary"]
    nothing = _number(uniform["mse" if error == "mse" else "whole_error"])
    ceiling = 2 * nothing if nothing > 0 else math.inf
    with picture_style():
        figure, axes = _axes("features m", _label(error), 6.2)
        for at, curve in enumerate(comparison["curves"]):
            points = [(p["features"], _number(p[error])) for p in curve["points"]]
            points = [(m, value) for m, value in points if 0 < value < math.inf]
            if points:
                colour = COLOURS[at % len(COLOURS)]
                m, values = (np.array(x) for x in zip(*points, strict=True))
                above, shown = values > ceiling, np.minimum(values, ceiling)
                axes.plot(m, shown, color=colour, lw=1.2)
                axes.plot(m[above], shown[above], "^", ms=5, color=colour)
                axes.plot(m[~above], shown[~above], "o", ms=4, color=colour)
                axes.plot([], [], "o-", ms=4, lw=1.2, color=colour, label=curve["family"])
            for point in curve["points"]:
                bound = _number(point["limit_mse"])
                if 0 < bound < math.inf:
                    limit[point["features"]] = min(bound, limit.get(point["features"], math.inf))
        if error == "mse" and limit:
            x, y = zip(*sorted(limit.items()), strict=True)
            axes.plot(x, y, "--", color=FAINT, label="limit for any map")
        if nothing > 0:
            axes.axhline(nothing, color=FAINT, lw=0.8, ls=":", label="uniform weights")
        if axes.has_data():
            axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def timing_figure(comparison: Mapping[str, Any]) -> Figure:
    """Draw the measured times, the fitted curves, and the length where they cross."""
    check_comparison(comparison)
    timing = comparison["timing"]
    if timing is None:
        raise ValueError("the comparison has no timing, so there is nothing to draw")
    crossover = _number(timing["crossover"])
    ends = [*timing["lengths"], *([crossover] if crossover > 0 else [])]
    n = np.geomspace(min(ends), max(ends) * 1.2, 100)
    with picture_style():
        figure, axes = _axes("length n, tokens", "milliseconds")
        for name, key, colour in (
            (timing["baseline"], "softmax", FAINT),
            (timing["map"], "linear", COLOURS[0]),
        ):
            fit = sum(c * n**power for power, c in enumerate(timing[f"{key}_fit"]))
            ms = [_number(value) for value in timing[f"{key}_ms"]]
            axes.plot(timing["lengths"], ms, "o", ms=4, color=colour, label=name)
            axes.plot(n, np.where(fit > 0, fit, np.nan), color=colour, lw=1.2)
        if crossover > 0:
            axes.axvline(
                crossover, color=INK, lw=0.8, ls=":", label=f"crossover n ≈ {crossover:.0f}"
            )
        axes.legend()
    return figure


def _axes(xlabel: str, ylabel: str, width: float = 4.6, height: float = 3.4) -> tuple[Figure, Axes]:
    figure = new_figure(width, height)
    axes = figure.subplots()
    log_axes(axes, xlabel, ylabel)
    for axis in (axes.xaxis, axes.yaxis):
        plain_numbers(axis)
    axes.margins(0.12)
    return figure, axes


def _ramp() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("kerneltrick", RAMP)


def _root(top: float) -> Any:
    from matplotlib.colors import PowerNorm

    return PowerNorm(0.5, 0, top if top > 0 else 1.0, clip=True)


def _label(error: str) -> str:
    return METRICS[error].title


def _number(value: Any) -> float:
    return math.nan if value is None else float(value)


def _index(numbers: Sequence[int], chosen: int | None, what: str) -> int:
    if chosen is None:
        return 0
    if chosen not in numbers:
        raise ValueError(f"the comparison has no {what} {chosen}; it has {list(numbers)}")
    return list(numbers).index(chosen)


def _head(comparison: Mapping[str, Any], layer: int, head: int) -> tuple[Weights, Weights]:
    data, picture = comparison["data"], comparison["picture"]
    shared = len(data["heads"]) // data["kv_heads"]
    found = []
    for name, heads, at in (
        ("q", len(data["heads"]), head),
        ("k", data["kv_heads"], head // shared),
    ):
        values = np.frombuffer(decode(picture[name], f"picture.{name}"), dtype="<f2")
        shape = (len(data["layers"]), heads, picture["tokens"], data["d"])
        found.append(values.reshape(shape)[layer, at].astype(np.float64))
    return found[0], found[1]


def _dial(entry: Mapping[str, Any], d: int, head: int) -> Dial:
    """The dial of a key–value head."""
    if entry["name"] == "t2r" and entry["projection"] is not None:
        weight = np.frombuffer(decode(entry["projection"], "projection"), dtype="<f4")
        learned = maps.T2R(weight=weight.reshape(-1, d).T.astype(np.float64))
        far = Far(entry["gain"], entry["relative"]) if entry["window"] or entry["sinks"] else None
        return Dial(learned, entry["window"], entry["sinks"], far)
    dial = Dial.get(entry["map"])
    if not dial.by_head:
        return dial
    window, sinks = dial.at_head(head)
    bare = [0] if head in dial.bare else []
    return dataclasses.replace(dial, window=[window], sinks=[sinks], whole=(), bare=bare)
