"""Recall of trained mixers against the bytes of their state: table and picture of the docs.

    python tools/make_trained.py             write docs/howto/recall.md's table and trained.png
    python tools/make_trained.py --add FILE  keep its rows, and add those of `recall --json FILE`
    python tools/make_trained.py --print     print the table

Runs `kerneltrick recall --preset minutes` with four more mixers, which takes about 20 minutes on
two CPUs, unless its numbers are in out/recall.json. An interrupted run continues. Remove that file
to start again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from generated import ROOT, page_with, save_picture, update
from make_stars import markdown
from matplotlib.figure import Figure

from kerneltrick._pictures import COLOURS, FAINT, INK, picture_style, plain_numbers
from kerneltrick.recall import preset
from kerneltrick.recall._result import pareto

PAGE = ROOT / "docs" / "howto" / "recall.md"
FOUND = ROOT / "out" / "recall.json"
BEGIN, END = "<!-- trained:begin -->", "<!-- trained:end -->"
MARKERS = "osD^vP"
MORE = ("power_retention:head_dim=8", "kda", "gated_deltanet2", "rwkv7")  # beside the preset's

Points = list[dict[str, Any]]


def measured() -> dict[str, Any]:
    """Read the numbers of the command, and run it first if necessary."""
    if not FOUND.exists():
        FOUND.parent.mkdir(exist_ok=True)
        command = (sys.executable, "-m", "kerneltrick", "recall", "--preset", "minutes")
        mixers = ",".join((*preset("minutes").mixers, *MORE))
        options = ("--mixers", mixers, "--jobs", str(os.cpu_count() or 1), "--json", str(FOUND))
        subprocess.run([*command, *options], check=True)
    found: dict[str, Any] = json.loads(FOUND.read_text(encoding="utf-8"))
    return found


def on_page(text: str) -> Points:
    """The points of the table on the page, rounded as they are there."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    widths = [int(cell.split()[1].rstrip(":")) for cell in rows[0][1::2]]
    found: Points = []
    for name, *cells in rows[2:]:
        for width, size, recall in zip(widths, cells[::2], cells[1::2], strict=True):
            mean, lowest, highest = map(float, re.findall(r"[0-9.]+", recall))
            point: dict[str, Any] = {"mixer": name.strip("`"), "width": width}
            point |= {"bytes": int(size.replace(",", "")), "accuracy": mean}
            found.append(point | {"lowest": lowest, "highest": highest})
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
            turn = place // len(COLOURS)  # the same colours again, with other markers and lines
            marker = MARKERS[(place + turn) % len(MARKERS)]
            sizes, means = ([point[key] for point in own] for key in ("bytes", "accuracy"))
            below = [point["accuracy"] - point["lowest"] for point in own]
            above = [point["highest"] - point["accuracy"] for point in own]
            axes.errorbar(
                sizes, means, (below, above), color=colour, marker=marker, ms=4.5,
                lw=1.3, elinewidth=0.8, capsize=2, label=name, ls=("-", "--", ":")[turn],
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
    parser.add_argument("--add", type=Path, metavar="FILE", help="add the points of this run")
    arguments = parser.parse_args(argv)
    text = PAGE.read_text(encoding="utf-8")
    found = json.loads(arguments.add.read_text(encoding="utf-8")) if arguments.add else measured()
    points, took = found["points"], [training["seconds"] for training in found["trainings"]]
    if arguments.add:
        names = {point["mixer"] for point in points}
        before = on_page(text[text.index(BEGIN) : text.index(END)])
        new = on_page(table(points))  # rounded too, so that all are compared alike
        points = [point for point in before if point["mixer"] not in names] + new
    print(f"{len(took)} trainings, {sum(took):,.0f} seconds of CPU time")
    print(table(points))
    if not arguments.print:
        update({PAGE: page_with(text, table(points), BEGIN, END)}, check=False, target="trained")
        save_picture(figure(points), "trained.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
