"""State tracking and copying of trained mixers: two tables of docs/howto/recall.md.

    python tools/make_tracking.py           write the tables
    python tools/make_tracking.py --print   print them

Runs `kerneltrick recall --task …` six times, half an hour of one CPU, unless the numbers are in
out/tracking. An interrupted run continues. Remove that folder to start again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from typing import Any

from generated import ROOT, page_with, update
from make_stars import markdown

from kerneltrick.recall import preset

PAGE = ROOT / "docs" / "howto" / "recall.md"
FOUND = ROOT / "out" / "tracking"
TRACKERS = (
    "ssd:state_dim=16",
    "deltanet:short_convolution=0",
    "deltanet:short_convolution=0,negative_eigenvalues=true",
    "deltaproduct:steps=2,short_convolution=0,negative_eigenvalues=false",
    "deltaproduct:steps=2,short_convolution=0",
    "deltaproduct:steps=4,short_convolution=0",
)
S5 = ("--task", "permutation", "--length", "16", "--items", "5")
COPIERS = preset("minutes", "copy").mixers
TRACKING = {
    "parity": ("--task", "parity", "--length", "32", "--steps", "300"),
    "S₃": ("--task", "permutation", "--length", "32", "--items", "3", "--steps", "600"),
    "S₅, swaps": (*S5, "--moved", "2", "--steps", "600"),
    "S₅": (*S5, "--steps", "1600", "--seeds", "1"),  # most of the time goes here
}
COPYING = {
    "copy": ("--task", "copy", "--steps", "400"),
    "selective": ("--task", "selective", "--steps", "1200", "--seeds", "1"),
}
TABLES = {"tracking": (TRACKERS, TRACKING), "copying": (COPIERS, COPYING)}  # by their marks


def measured(name: str, mixers: tuple[str, ...], task: tuple[str, ...]) -> dict[str, Any]:
    """Read the numbers of the command, and run it first if necessary."""
    path = FOUND / f"{name}.json"
    if not path.exists():
        FOUND.mkdir(parents=True, exist_ok=True)
        command = (sys.executable, "-m", "kerneltrick", "recall", *task, "--jobs", "2")
        subprocess.run([*command, "--mixers", " ".join(mixers), "--json", str(path)], check=True)
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def table(mixers: tuple[str, ...], found: dict[str, dict[str, Any]]) -> str:
    """Return the table: a row for each mixer, a column for each task."""
    chance = (f"{x['settings']['task']['chance']:.2f}" for x in found.values())
    lines = [("mixer", "state, bytes", *found), ("guessing", "", *chance)]
    for mixer in mixers:
        own = [next(p for p in x["points"] if p["mixer"] == mixer) for x in found.values()]
        seeds = (x["settings"]["seeds"] for x in found.values())
        cells = map(_cell, own, seeds)
        lines.append((f"`{mixer}`", f"{own[0]['bytes']:,}", *cells))
    return markdown(lines)


def _cell(point: dict[str, Any], seeds: int) -> str:
    """The mean over the seeds and, if there are several, the lowest and the highest."""
    mean = f"{point['accuracy']:.2f}"
    return mean if seeds == 1 else f"{mean} ({point['lowest']:.2f}–{point['highest']:.2f})"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--print", action="store_true", help="print the table without writing")
    arguments = parser.parse_args(argv)
    page = PAGE.read_text(encoding="utf-8")
    for mark, (mixers, tasks) in TABLES.items():
        found = {name: measured(name, mixers, task) for name, task in tasks.items()}
        took = [training["seconds"] for x in found.values() for training in x["trainings"]]
        print(f"{len(took)} trainings, {sum(took):,.0f} seconds of CPU time")
        print(table(mixers, found))
        begin, end = f"<!-- {mark}:begin -->", f"<!-- {mark}:end -->"
        page = page_with(page, table(mixers, found), begin, end)
    if not arguments.print:
        update({PAGE: page}, check=False, target="tracking")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
