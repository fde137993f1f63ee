"""The comparison as a table for the terminal."""

from __future__ import annotations

import math
import sys
from typing import TextIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kerneltrick.analysis import Comparison, MapReport

WIDTH = 100
_SIGNS = {"positive": "> 0", "non-negative": "≥ 0"}


def show(result: Comparison, source: str, file: TextIO | None = None) -> None:
    """Print the table and how to read it, at most 100 columns wide."""
    console = Console(file=file or sys.stdout, highlight=False)
    console.width = min(console.width, WIDTH) if console.is_terminal else WIDTH
    console.print(_table(result, source))
    console.print(Text(_legend(result), style="dim"))


def _table(result: Comparison, source: str) -> Table:
    kind = "causal" if result.causal else "full"
    table = Table(
        title=f"Feature maps against softmax, {kind} attention\n{_data(result)}; {source}",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("map", overflow="fold", min_width=12)
    for name in ("m", "corr.", "error", "MSE", "ms/1k", "state", "weights", "undef."):
        table.add_column(name, justify="right", no_wrap=True)
    time = _number(result.softmax_ms_per_1000_tokens)
    cache = _bytes(result.softmax_cache_bytes)
    table.add_row("softmax", "–", "1.000", "0", "0", time, cache, "> 0", "0", style="bold")
    for row in result.maps:
        table.add_row(*_cells(row))
    return table


def _cells(row: MapReport) -> list[str]:
    quality = row.quality
    return [
        row.map,
        str(row.features),
        _fixed(quality.weights.correlation),
        _number(quality.output_relative_error),
        _scientific(quality.weights.mse),
        _number(row.ms_per_1000_tokens),
        _bytes(quality.state_bytes),
        _SIGNS.get(row.sign, f"{100 * quality.negative_fraction:.0f} % < 0"),
        str(quality.undefined_rows),
    ]


def _data(result: Comparison) -> str:
    *lead, n, d = result.shape
    heads = math.prod(lead)
    shape = f"n = {n}, d = {d}, values {result.value_width}"
    return f"{shape}, {heads} head{'s' if heads != 1 else ''}, {result.dtype}"


def _legend(result: Comparison) -> str:
    where = " where j ≤ i" if result.causal else ""
    return (
        f"corr., MSE: weights against softmax's{where}. error: ‖O − O_softmax‖ / ‖O_softmax‖.\n"
        "ms/1k: measured here, best of several, milliseconds per 1000 tokens, all heads.\n"
        "state: bytes to remember (softmax: keys and values of all n tokens). m: features.\n"
        "undef.: rows whose weights sum to 0: no output, left out of the averages."
    )


def _fixed(x: float) -> str:
    return "–" if math.isnan(x) else f"{x:.3f}"


def _scientific(x: float) -> str:
    return "–" if math.isnan(x) else f"{x:.1e}"


def _number(x: float) -> str:
    """Three digits that matter."""
    if not math.isfinite(x):
        return "–" if math.isnan(x) else "∞"
    if x >= 10_000 or 0 < x < 0.001:
        return f"{x:.1e}"
    return f"{x:.{max(0, 2 - math.floor(math.log10(x)))}f}" if x > 0 else "0"


def _bytes(count: int) -> str:
    return f"{count:,}"
