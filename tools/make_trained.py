"""Recall of trained mixers against the bytes of their state: table and picture of the docs.

    python tools/make_trained.py           write docs/howto/recall.md's table and trained.png
    python tools/make_trained.py --print   print the table

Runs `kerneltrick recall --preset minutes`, which takes a quarter of an hour on two CPUs, unless its
numbers are in out/recall.json. An interrupted run continues. Remove that file to start again.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from generated import ROOT, page_with, save_picture, update
from make_stars import markdown
from matplotlib.figure import Figure

from kerneltrick._pictures import COLOURS, FAINT, INK, picture_style, plain_numbers
from kerneltrick.recall._result import pareto

PAGE = ROOT / "docs" / "howto" / "recall.md"
FOUND = ROOT / "out" / "recall.json"
BEGIN, END = "<!-- trained:begin -->", "<!-- trained:end -->"
MARKERS = "osD^vP"

Points = list[dict[str, Any]]


def measured() -> dict[str, Any]:
    """Read the numbers of the command, and run it first if necessary."""
    if not FOUND.exists():
        FOUND.parent.mkdir(exist_ok=True)
        command = (sys.executable, "-m", "kerneltrick", "recall", "--preset", "minutes")
        jobs = str(os.cpu_count() or 1)
        subprocess.run([*command, "--jobs", jobs, "--json", str(FOUND)], check=True)
    found: dict[str, Any] = json.loads(FOUND.read_text(encoding="utf-8"))
    return found


def by_mixer(points: Points) -> dict[str, Points]:
    """Group points by mixer, in order of their recall at the middle width."""
    widths = sorted({point["width"] for point in points})
    middle = [point for point in points if point["width"] == widths[len(widths) // 2]]
    names = [point["mixer"] for point in sorted(middle, key=lambda point: -point["accuracy"])]
    return {
        name: sorted((x for x in points if x["mixer"] == name), key=lambda x: x["width"])
        for name in names
    }


def front_of(points: Points) -> Points:
    """Return the Pareto front, the smallest state first."""
    kept = pareto([(point["bytes"], point["accuracy"]) for point in points])
    return sorted((points[i] for i in kept), key=lambda point: point["bytes"])


def table(points: Points) -> str:
    """Make the table: bytes, recall, and lowest and highest seed, per mixer and width."""
    widths, front = sorted({point["width"] for point in points}), front_of(points)
    lines: list[tuple[str, ...]] = [
        ("mixer", *(x for width in widths for x in (f"width {width}: bytes", "recall")))
    ]
    for name, own in by_mixer(points).items():
        cells: list[str] = []
        for point in own:
            spread = f"{point['lowest']:.2f}–{point['highest']:.2f}"
            mark = "**" if point in front else ""
            cells += [f"{point['bytes']:,}", f"{mark}{point['accuracy']:.2f}{mark} ({spread})"]
        lines.append((f"`{name}`", *cells))
    return markdown(lines)


def figure(points: Points) -> Figure:
    """Draw recall against bytes: one line per mixer, bars from the lowest to the highest seed."""
    with picture_style():
        drawn = Figure(figsize=(7.6, 4.2), layout="constrained")
        axes = drawn.subplots()
        for place, (name, own) in enumerate(by_mixer(points).items()):
            colour = INK if name == "softmax" else COLOURS[place % len(COLOURS)]
            sizes, means = ([point[key] for point in own] for key in ("bytes", "accuracy"))
            below = [point["accuracy"] - point["lowest"] for point in own]
            above = [point["highest"] - point["accuracy"] for point in own]
            axes.errorbar(
                sizes, means, (below, above), color=colour, marker=MARKERS[place % len(MARKERS)],
                ms=4.5, lw=1.3, elinewidth=0.8, capsize=2, label=name,
                ls="--" if place >= len(COLOURS) else "-",
            )  # fmt: skip
        front = [(point["bytes"], point["accuracy"]) for point in front_of(points)]
        axes.step(*zip(*front, strict=True), where="post", color=FAINT, lw=3, alpha=0.35, zorder=0)
        axes.set(
            xscale="log", ylim=(-0.03, 1.03), xlabel="bytes of the state",
            ylabel="share of queries answered",
            title="recall of trained mixers: 16 pairs in 64 tokens",
        )  # fmt: skip
        plain_numbers(axes.xaxis)
        axes.grid(axis="y")
        drawn.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    return drawn


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--print", action="store_true", help="print the table without writing")
    arguments = parser.parse_args(argv)
    found = measured()
    points, took = found["points"], [training["seconds"] for training in found["trainings"]]
    print(f"{len(took)} trainings, {sum(took):,.0f} seconds of CPU time")
    print(table(points))
    if not arguments.print:
        page = page_with(PAGE.read_text(encoding="utf-8"), table(points), BEGIN, END)
        update({PAGE: page}, check=False, target="trained")
        save_picture(figure(points), "trained.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
