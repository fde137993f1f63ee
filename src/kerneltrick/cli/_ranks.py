"""`kerneltrick costs --ranks`: predicted cost of one sequence split over several ranks."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import typer
from rich import box
from rich.table import Table

from kerneltrick import costs
from kerneltrick._files import is_standard_output
from kerneltrick._text import shown, to_json
from kerneltrick.attention import Dial
from kerneltrick.cli._arguments import DataError
from kerneltrick.cli._output import console, plain, words_stream
from kerneltrick.costs import FORMULAS, powers


def show_ranks(
    chosen: list[Dial],
    ranks: int,
    machine: costs.Machine,
    sizes: costs.Sizes,
    as_json: bool,
    plot: Path | None,
) -> None:
    """Print a table of linear and ring attention for 1, 2, 4, … ranks, or JSON."""
    given: dict[str, Any] = {
        "n": sizes.n,
        "d": sizes.d,
        "values": sizes.value_width,
        "heads": sizes.heads,
        "batch": sizes.batch,
        "number_bytes": sizes.bytes,
    }
    found = {
        f"linear, {dial}": [
            costs.context_parallel(dial, r, machine, chunk=sizes.chunk, **given)
            for r in powers(ranks)
        ]
        for dial in chosen
    }
    found["ring, softmax"] = [costs.ring(r, machine, **given) for r in powers(ranks)]
    if as_json:
        rows = {name: [dataclasses.asdict(x) for x in each] for name, each in found.items()}
        known = {"format": "kerneltrick.ranks/1", "sizes": given, "formulas": FORMULAS}
        typer.echo(
            to_json({**known, "machine": dataclasses.asdict(machine), "rows": rows}, indent=1)
        )
    else:
        out = console(words_stream({} if plot is None else {"--plot": plot}))
        title = (
            f"n = {sizes.n:,} tokens over ranks, causal, forward, one layer of {sizes.heads} heads "
            f"of {sizes.d}, batch {sizes.batch}"
        )
        out.print(plain(title))
        for name, each in found.items():
            table = Table(title=name, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
            for column in (
                "ranks",
                "bytes sent per rank",
                "compute",
                "wait",
                "total",
                "efficiency",
            ):
                table.add_column(column, justify="right")
            for x in each:
                table.add_row(
                    str(x.ranks),
                    f"{x.sent:,}",
                    _time(x.compute),
                    _time(x.exposed),
                    _time(x.seconds),
                    f"{x.efficiency:.1%}",
                )
            out.print(table)
        for line in FORMULAS:
            out.print(plain(line, "dim"))
    if plot is not None:
        try:
            figure = costs.communication_figure(chosen[0], machine, most=ranks, **given)
            costs.save_figure(figure, plot)
        except ImportError as error:
            raise DataError(str(error)) from None
        if not is_standard_output(plot):
            typer.echo(f"wrote {plot}", err=as_json)


def _time(seconds: float) -> str:
    if seconds >= 999.5:
        return f"{seconds:,.0f} s"
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if seconds >= 0.9995 * size:
            return f"{shown(seconds / size)} {unit}"
    return "0" if seconds == 0 else f"{shown(seconds * 1e9)} ns"
