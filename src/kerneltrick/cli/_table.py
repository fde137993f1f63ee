"""The comparison on the terminal: a table and the verdict."""

from __future__ import annotations

import math
from typing import TextIO

from rich import box
from rich.padding import Padding
from rich.table import Table

from kerneltrick._text import shown
from kerneltrick.analysis import Comparison, MapReport
from kerneltrick.cli._output import console, plain

COLUMNS = (
    "m", "error", "whole", "corr.", "top-1", "MSE", "× limit", "ms/1k", "from n", "state",
)  # fmt: skip


def show(result: Comparison, file: TextIO | None = None) -> None:
    """Print the table, its legend and the verdict, at most 100 columns wide."""
    out = console(file)
    out.print(_table(result))
    out.print(plain(_legend(result), "dim"))
    for note in result.data.notes:
        out.print(plain("Note: " + note, "dim"))
    out.print()
    out.print(plain(result.headline or result.verdict, "bold"))
    for finding in result.findings:
        out.print(Padding(_bullet(finding), (0, 0, 0, 2)))


def _bullet(finding: str) -> Table:
    """A finding whose lines are indented under its bullet."""
    row = Table.grid(padding=(0, 1))
    row.add_row("•", plain(finding))
    return row


def _table(result: Comparison) -> Table:
    data = result.data
    kind = "causal" if data.causal else "full"
    title = f"Feature maps against softmax, {kind} attention\n{_shape(result)}\n"
    table = Table(
        title=plain(title + data.source.replace("\n", " ")),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("map", overflow="fold", min_width=12)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    softmax = result.softmax
    table.add_row(
        "softmax",
        "–",
        "0",
        "0",
        "1.000",
        "1.00",
        "0",
        "–",
        _short(softmax.ms_per_1000_tokens),
        "–",
        _bytes(softmax.cache_bytes),
        style="bold",
    )
    table.add_row(*_cells(result.uniform), style="dim")
    for row in result.maps:
        table.add_row(*_cells(row))
    return table


def _cells(row: MapReport) -> list[str]:
    summary = row.summary
    return [
        row.map,
        str(row.features),
        _fixed(summary.output_error),
        _fixed(summary.whole_error),
        _fixed(summary.correlation),
        _fixed(summary.top1_agreement, 2),
        _scientific(summary.mse),
        _short(summary.times_limit),
        _short(row.ms_per_1000_tokens),
        "–" if row.crossover is None else f"{row.crossover:.0f}",
        _bytes(row.state_bytes),
    ]


def _shape(result: Comparison) -> str:
    data = result.data
    layers, heads = len(data.layers), len(data.heads)
    return (
        f"{layers} layer{'s' * (layers != 1)} × {heads} head{'s' * (heads != 1)}, n = {data.n}, "
        f"d = {data.d}, values {data.value_width}, {data.dtype}; means over heads"
    )


def _legend(result: Comparison) -> str:
    undefined = [row for row in result.maps if row.summary.undefined_rows]
    softmax = "softmax" if result.timing is None else result.timing.baseline
    lines = [
        "uniform: the same weight for every token, so queries and keys are ignored (a baseline).",
        "error: ‖O − O_softmax‖ / ‖O_softmax‖, mean over heads; whole: over all heads together.",
        "corr., top-1, MSE: agreement of the weights. × limit: MSE divided by the minimum for any "
        "map with that m (– if that is 0, or with a window).",
        "ms/1k: milliseconds per 1000 tokens of a layer on this machine. from n: the length from "
        f"which the map is faster than {softmax}.",
        "state: bytes per layer (softmax: keys and values of all n tokens).",
    ]
    if undefined:
        named = ", ".join(f"{row.map}: {row.summary.undefined_rows}" for row in undefined)
        lines.append(f"rows whose weights sum to 0, excluded from the averages: {named}.")
    return "\n".join(lines)


def _fixed(x: float, digits: int = 3) -> str:
    return "–" if math.isnan(x) else f"{x:.{digits}f}"


def _scientific(x: float) -> str:
    return "–" if math.isnan(x) else f"{x:.1e}"


def _short(x: float) -> str:
    """Format a number with two or three significant digits."""
    if not math.isfinite(x):
        return "–" if math.isnan(x) else "∞"
    if x >= 10**6 or 0 < x < 0.001:
        return f"{x:.0e}"
    return f"{x:,.{max(0, 2 - math.floor(math.log10(x)))}f}" if x > 0 else "0"


def _bytes(count: int) -> str:
    for unit, size in (("MB", 10**6), ("kB", 10**3)):
        if count >= size:
            return f"{shown(count / size)} {unit}"
    return f"{count} B"
