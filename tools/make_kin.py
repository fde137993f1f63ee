"""Draw the pictures of docs/08_modern_kin.md and docs/choose_a_map.md, and measure its table.

    python tools/make_kin.py           write the pictures and the table
    python tools/make_kin.py --check   exit 1 if the table is not up to date
    python tools/make_kin.py --print   print the table

kin.png shows the weights of softmax and seven relatives on the same tokens. choose.png shows the
output error of maps on five kinds of data. No number depends on the machine.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from pathlib import Path

import numpy as np
from generated import IMAGES, ROOT, page_with, save_picture, update
from make_stars import markdown
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

import kerneltrick as kt
from kerneltrick import analysis, costs
from kerneltrick._pictures import BLUE, FAINT, LINE, ORANGE, picture_style

PAGE = ROOT / "docs/choose_a_map.md"
BEGIN, END = "<!-- choose:begin -->", "<!-- choose:end -->"
N, D = 40, 8  # tokens and width in kin.png

WIDTH = 32  # width of q, k and v in every data set below
EDGE = 1.3  # largest error shown in choose.png
NEAR = 0.5  # a head with a larger output error counts as not reproduced
SYNTHETIC = {
    "random": "gaussian:n=256,d=32,heads=4",
    "random, half as long": "gaussian:n=256,d=32,heads=4,scale=0.5",
    "topics": "clustered:n=256,d=32,heads=4",
    "needles": "needle:n=256,d=32,heads=4",
}
MAPS = (
    "elu",
    "relu",
    "relu2",
    "exp",
    "cosformer:horizon=256",
    "hedgehog",
    "favor:features=64",
    "favor:features=256",
    "favor:features=1024",
    "poly:degree=2",
    "taylor:order=2",
    "softmax@window=16,sinks=1",
    "elu@window=16,sinks=1",
    "hedgehog@window=16,sinks=1",
    "taylor:order=2@window=16,sinks=1",
)


@dataclasses.dataclass(frozen=True)
class Row:
    """One map on the sample and on the synthetic data sets, by their names in SYNTHETIC."""

    name: str
    features: int
    cost: float  # multiply-adds relative to elu
    sample: analysis.HeadMetrics
    near: int  # heads of the sample with an output error of at most NEAR
    heads: int
    synthetic: dict[str, analysis.HeadMetrics]


def measure(chosen: tuple[str, ...] = MAPS) -> list[Row]:
    """Return one row per map, and a last row for uniform weights."""
    sample = analysis.compare(analysis.sample(), chosen, measure=False)
    found = {
        name: analysis.compare(analysis.synthetic_attention(text), chosen, measure=False)
        for name, text in SYNTHETIC.items()
    }
    rows = []
    for place, report in enumerate((*sample.maps, sample.uniform)):
        heads = [head for layer in report.heads for head in layer if head is not None]
        named = report is not sample.uniform
        rows.append(
            Row(
                report.map if named else "*uniform weights*",
                report.features,
                multiply_adds(report.map) / multiply_adds("elu") if named else math.nan,
                report.summary,
                sum(head.output_error <= NEAR for head in heads),
                len(heads),
                {
                    name: (*result.maps, result.uniform)[place].summary
                    for name, result in found.items()
                },
            )
        )
    return rows


def multiply_adds(text: str) -> float:
    counted = costs.windowed(text, d=WIDTH) if "@" in text else costs.linear(text, d=WIDTH)
    return float(counted.at(n=1000, D=WIDTH, M=WIDTH).multiply_adds)


def table(rows: list[Row]) -> str:
    """Return the measured table and the explanation of its columns."""
    lines = [("map", "m", "cost", "sample", f"heads ≤ {NEAR}", "top-1", *SYNTHETIC)]
    for row in rows:
        known = not math.isnan(row.cost)
        lines.append(
            (
                f"`{row.name}`" if known else row.name,
                str(row.features),
                f"{row.cost:.1f}×" if known else "",
                f"{row.sample.output_error:.2f}",
                f"{row.near} of {row.heads}".replace(" ", "\N{NO-BREAK SPACE}"),
                f"{row.sample.top1_agreement:.2f}" if known else "",
                *(f"{row.synthetic[name].output_error:.2f}" for name in SYNTHETIC),
            )
        )
    return f"{markdown(lines)}\n\n{NOTES}"


NOTES = f"""\
*`make kin` (`tools/make_kin.py`) measures this table with d = {WIDTH} and full attention. "cost" is
the number of multiply-adds relative to `elu`. "sample" is the output error ‖O − O′‖/‖O′‖, where O′
is the output of softmax, averaged over all heads of the embedded sample. "heads ≤ {NEAR}" is the
number of heads whose error is at most {NEAR}. "top-1" is how often the map and softmax give the
largest weight to the same key. The last columns are output errors on synthetic data
(`kerneltrick compare --synthetic TEXT`):*

{"".join(f"- {name}: `{text}`" + chr(10) for name, text in SYNTHETIC.items())}"""


def choose_figure(rows: list[Row]) -> Figure:
    """Draw the output error of each map on all data sets. The line is uniform weights."""
    shown = {f"sample, {rows[0].heads} heads": [row.sample.output_error for row in rows]}
    shown |= {name: [row.synthetic[name].output_error for row in rows] for name in SYNTHETIC}
    places = np.arange(len(rows) - 1)[::-1]
    with picture_style():
        drawn = Figure(figsize=(8.6, 4.4), layout="constrained")
        panels = drawn.subplots(1, len(shown), sharey=True)
        for axes, (title, errors) in zip(panels, shown.items(), strict=True):
            axes.axvline(errors[-1], color=ORANGE, lw=1.2)
            axes.hlines(places, 0, np.minimum(errors[:-1], EDGE), color=LINE, lw=3)
            for place, error in zip(places, errors[:-1], strict=True):
                axes.plot(min(error, EDGE), place, "o" if error <= EDGE else ">", color=BLUE, ms=5)
            axes.set(xlim=(0, EDGE + 0.04), xticks=[0, 0.5, 1], title=title)
            axes.tick_params(axis="y", length=0)
        labels = [label(row) for row in rows[:-1]]
        panels[0].set_yticks(places, labels)
        drawn.supxlabel(
            "output error against softmax; the line is uniform weights, ▸ beyond the edge",
            fontsize=9, color=FAINT,
        )  # fmt: skip
    return drawn


def label(row: Row) -> str:
    dial = kt.Dial.get(row.name)
    near = f" + window {dial.window}" if dial.window else ""
    return f"{dial.feature_map.name}, m = {row.features}{near}" if row.features else near[3:]


def weights(seed: int = 3) -> dict[str, np.ndarray]:
    """Return the n×n weights of each mixer by name, computed with the package's functions."""
    rng = np.random.default_rng(seed)
    q, k = rng.standard_normal((2, N, D))
    step = np.log1p(np.exp(2 * rng.standard_normal(N)))
    lag = np.subtract.outer(np.arange(N), np.arange(N))
    filter_ = np.exp(-np.arange(N) / 12) * np.cos(np.arange(N) / 2.5)
    no_query = np.zeros((N, 1))
    plain = {"causal": True, "normalize": False}
    return {
        "softmax": kt.softmax_attention(q, k, k, causal=True, return_weights=True)[1],
        "ELU + 1": kt.attention_weights(q, k, "elu", causal=True),
        "Performer, m = 256": kt.attention_weights(q, k, "favor:features=256", causal=True),
        f"cosFormer, N = {N}": kt.attention_weights(
            q, k, f"cosformer:horizon={N}", causal=True, on_zero="zero"
        ),
        "RetNet, γ = 0.9": kt.attention_weights(q, k, "identity", **plain, log_decay=np.log(0.9)),
        "RWKV-4, a channel": kt.attention_weights(
            no_query, k[:, :1], "exp", causal=True, log_decay=-0.15
        ),
        "Mamba-2": kt.attention_weights(q, k, "identity", **plain, log_decay=-0.3 * step),
        "Hyena, a channel": np.where(
            lag >= 0, q[:, :1] * filter_[np.maximum(lag, 0)] * k[:, 0], 0.0
        ),
    }


def kin_figure() -> Figure:
    """Draw eight panels, each scaled by its 98 % quantile instead of its largest entry."""
    colours = LinearSegmentedColormap.from_list("signed", [ORANGE, "#ffffff", BLUE])
    lower = np.tri(N, dtype=bool)
    with picture_style():
        drawn = Figure(figsize=(8.6, 4.7), layout="constrained")
        panels = drawn.subplots(2, 4)
        for axes, (name, found) in zip(panels.flat, weights().items(), strict=True):
            shown = np.where(lower, found / np.quantile(np.abs(found[lower]), 0.98), np.nan)
            axes.imshow(shown, cmap=colours, vmin=-1, vmax=1, interpolation="nearest")
            axes.set(xticks=[], yticks=[], title=name)
        for axes in panels[:, 0]:
            axes.set_ylabel("token i", color=FAINT)
        for axes in panels[1]:
            axes.set_xlabel("token j ≤ i", color=FAINT)
    return drawn


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    group.add_argument("--print", action="store_true", help="print the table, write nothing")
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder for the pictures")
    arguments = parser.parse_args(argv)
    rows = measure()
    block = table(rows)
    if arguments.print:
        print(block)
        return 0
    page = page_with(PAGE.read_text(encoding="utf-8"), block, BEGIN, END)
    if status := update({PAGE: page}, arguments.check, "kin"):
        return status
    if arguments.check:
        return 0
    save_picture(kin_figure(), "kin.png", arguments.images)
    save_picture(choose_figure(rows), "choose.png", arguments.images)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
