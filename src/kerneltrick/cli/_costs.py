"""`kerneltrick costs`: count what attention costs, and measure it on this machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from kerneltrick import costs, maps
from kerneltrick._files import is_standard_output
from kerneltrick._pictures import picture_format, require_matplotlib
from kerneltrick._text import shown, to_json
from kerneltrick.attention import Dial
from kerneltrick.cli._arguments import MOST_FEATURES, DataError, UsageError, split_maps
from kerneltrick.cli._output import check_writable, console, plain, words_stream
from kerneltrick.cli._ranks import show_ranks

UNITS = {
    "bandwidth": 1e9,
    "latency": 1e-6,
    "flops": 1e12,
}  # units of the options that describe a rank


def costs_command(
    n: Annotated[int, typer.Option("--n", help="Number of tokens.")] = 4096,
    d: Annotated[int, typer.Option("--d", help="Width of queries and keys of a head.")] = 64,
    values: Annotated[
        int | None, typer.Option("--values", help="Width of the values of a head. Default: d.")
    ] = None,
    width: Annotated[
        int | None,
        typer.Option("--width", help="Input width of the projections. Default: d."),
    ] = None,
    map_texts: Annotated[
        list[str] | None,
        typer.Option(
            "--map",
            "--maps",
            metavar="MAPS",
            show_default=False,
            help="Feature maps, as in `kerneltrick compare`, also with windows: "
            "elu@window=64,sinks=4. Where heads differ (whole=0+5), counts are means over the "
            "key/value heads. Default: elu and poly:degree=2.",
        ),
    ] = None,
    decode: Annotated[
        bool, typer.Option("--decode", help="Count decoding: one step, and all n steps.")
    ] = False,
    train: Annotated[
        bool, typer.Option("--train", help="Count the forward and the backward pass.")
    ] = False,
    delta: Annotated[
        bool, typer.Option("--delta", help="Count the delta rule too, with a decay per token.")
    ] = False,
    heads: Annotated[
        int,
        typer.Option(
            "--heads", help="Number of query heads, for --decode, --ranks and heads that differ."
        ),
    ] = 8,
    kv_heads: Annotated[
        int | None, typer.Option("--kv-heads", help="Number of key/value heads. Default: --heads.")
    ] = None,
    batch: Annotated[
        int, typer.Option("--batch", help="Number of sequences, for --decode and --ranks.")
    ] = 1,
    chunk: Annotated[
        int, typer.Option("--chunk", help="Tokens per chunk of causal attention.")
    ] = 64,
    number_bytes: Annotated[int, typer.Option("--bytes", help="Bytes per number.")] = 4,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            min=1,
            show_default=False,
            help="Spread the tokens over up to this many ranks and compare with ring attention. "
            "--bandwidth, --latency and --flops describe a rank.",
        ),
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(
            "--bandwidth",
            show_default=False,
            help="Bandwidth of a rank's link in GB/s. Default: 25.",
        ),
    ] = None,
    latency: Annotated[
        float | None,
        typer.Option(
            "--latency", show_default=False, help="Latency of a message in µs. Default: 10."
        ),
    ] = None,
    flops: Annotated[
        float | None,
        typer.Option(
            "--flops", show_default=False, help="Speed of a rank in TFLOP/s. Default: 100."
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure/--no-measure",
            help="Time softmax and the maps on this machine (a few seconds).",
        ),
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw a picture: a .png, .pdf or .svg file (extra: plot).",
        ),
    ] = None,
) -> None:
    """Count multiply-adds, bytes moved and memory, and find the length from which linear wins."""
    about = {"bandwidth": bandwidth, "latency": latency, "flops": flops}
    link = {name: value * UNITS[name] for name, value in about.items() if value is not None}
    if link and ranks is None:
        raise UsageError(f"--{next(iter(link))} needs --ranks")
    try:
        sizes = costs.Sizes(n, d, values, width, heads, kv_heads, batch, chunk, bytes=number_bytes)
        chosen = _maps(map_texts, d)
        rows = costs.summary(sizes, chosen, train=train, decode=decode, delta=delta)
        machine = costs.Machine(**link)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if plot is not None:
        try:
            picture_format(plot)
            require_matplotlib()
        except ValueError as error:
            raise UsageError(f"--plot: {error}") from None
        except ImportError as error:
            raise DataError(str(error)) from None
        check_writable(plot)
        if as_json and is_standard_output(plot):
            raise UsageError(f"--plot and --json both write {plot}")
    if ranks is not None:
        if decode or train:
            raise UsageError(
                "--ranks counts a forward pass only; it cannot be combined with --decode or --train"
            )
        show_ranks(chosen, ranks, machine, sizes, as_json, plot)
        return
    lengths = not decode and not train
    measured = _measure(sizes, chosen) if measure and lengths else {}
    if as_json:
        typer.echo(_json(sizes, rows, chosen, measured, lengths))
    else:
        out = console(words_stream({} if plot is None else {"--plot": plot}))
        _show(out, sizes, rows, chosen, measured, decode, train)
    if plot is not None:
        try:
            costs.save_figure(costs.figure(sizes, chosen, measured), plot)
        except ImportError as error:
            raise DataError(str(error)) from None
        if not is_standard_output(plot):
            typer.echo(f"wrote {plot}", err=as_json)


def _maps(texts: list[str] | None, d: int) -> list[Dial]:
    found = [Dial.get(text) for text in split_maps(texts or ["elu", "poly:degree=2"])]
    if not found:
        raise UsageError("--map names no map; known are " + ", ".join(maps.names()))
    for feature_map in (dial.feature_map for dial in found):
        if feature_map.dim(d) > MOST_FEATURES * 1000:
            raise UsageError(f"{feature_map} has {feature_map.dim(d):,} features for d = {d}")
    return found


def _measure(sizes: costs.Sizes, chosen: list[Dial]) -> dict[str, dict[str, Any]]:
    """Time one head on this machine. Too many features, and heads that differ, are skipped."""
    from kerneltrick.analysis import timings

    small = [
        dial
        for dial in chosen
        if dial.feature_map.dim(sizes.d) <= MOST_FEATURES and not dial.by_head
    ]
    if not small:
        return {}
    softmax = timings.measure_softmax(1, sizes.d, sizes.value_width, False)
    found = {}
    for dial in small:
        try:
            dial.feature_map.check_positions(0, max(timings.LENGTHS) - 1)
        except ValueError:
            continue
        linear = timings.measure_linear(dial, 1, sizes.d, sizes.value_width, False)
        found[str(dial)] = dataclasses.asdict(timings.timing(str(dial), 1, linear, softmax))
    return found


def _json(
    sizes: costs.Sizes,
    rows: list[costs.Row],
    chosen: list[Dial],
    measured: dict[str, dict[str, Any]],
    lengths: bool,
) -> str:
    found: dict[str, Any] = {
        "format": "kerneltrick.costs/1",
        "sizes": sizes.symbols() | {"w": sizes.bytes},
        "rows": [row.to_json() for row in rows],
    }
    if lengths:
        found["lab_ratio"] = costs.lab_ratio(sizes.n, sizes.d)
        found["crossover"] = [
            {
                "map": str(dial),
                "on_paper": costs.paper_crossover(sizes, dial),
                "measured": measured.get(str(dial), {}).get("crossover"),
            }
            for dial in chosen
        ]
        found["measured"] = measured
    return to_json(found, indent=1)


def _show(
    out: Console,
    sizes: costs.Sizes,
    rows: list[costs.Row],
    chosen: list[Dial],
    measured: dict[str, dict[str, Any]],
    decode: bool,
    train: bool,
) -> None:
    out.print(_table(sizes, rows, decode))
    for row in rows:
        out.print(plain(f"{row.cost.name}: {_expression(row.cost)}", "dim"))
    out.print()
    if not decode and not train:
        for line in _comparison(sizes, rows, chosen, measured):
            out.print(plain(line))


def _table(sizes: costs.Sizes, rows: list[costs.Row], decode: bool) -> Table:
    s = sizes.symbols()
    shape = f"n = {s['n']:,}, d = {s['D']}, values {s['M']}, {sizes.bytes} bytes per number"
    if decode:
        shape += f"; {s['h']} heads, {s['g']} key/value heads, batch {s['b']}, width {s['d']}"
    table = Table(
        title=plain(f"What attention costs: {shape}"),
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    table.add_column("", overflow="fold", min_width=16)
    for name in ("multiply-adds", "cheaper", "other ops", "bytes moved", "bytes held"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        numbers = row.numbers
        table.add_row(
            row.cost.name,
            _short(numbers.multiply_adds),
            "–" if row.cost.name == "projections" else f"×{shown(row.ratio)}",
            _short(numbers.elementwise),
            _short(numbers.moved),
            _short(numbers.memory),
        )
    return table


def _comparison(
    sizes: costs.Sizes,
    rows: list[costs.Row],
    chosen: list[Dial],
    measured: dict[str, dict[str, Any]],
) -> list[str]:
    n, d = sizes.n, sizes.d
    lines = [
        f"One of the two products, as in lab 02: n²·d = {_short(n * n * d)} against n·d² = "
        f"{_short(n * d * d)}: ×{shown(costs.lab_ratio(n, d), 4)}"
    ]
    for dial in chosen:
        near = dial.near
        row = next(r for r in rows if r.cost.name == f"{'full' if near else 'linear'}, {dial}")
        paper = costs.paper_crossover(sizes, dial)
        found = measured.get(str(dial))
        here = "not measured"
        if found is not None:
            crossing = found["crossover"]
            here = "no crossover" if crossing is None else f"n ≈ {crossing:.0f}"
            here += f" measured on this machine against {found['baseline']}"
        ratios = f"×{shown(row.ratio)} cheaper than softmax"
        if not near:
            parts = row.numbers.parts
            bare = rows[1].numbers.multiply_adds / (parts["U"] + parts["φ(Q)U"])
            ratios = f"×{shown(float(bare))} cheaper than softmax, ×{shown(row.ratio)} with Z and φ"
        wins = "never wins" if paper is None else f"wins from n = {paper:,}"
        lines.append(f"{dial}: {ratios}; {wins} on paper, {here}")
    return lines


def _expression(cost: costs.Cost) -> str:
    """The exact count, or its order if the count is long. --json prints all counts in full."""
    exact = cost.multiply_adds
    return str(exact) if len(exact.terms) <= 8 else f"O({cost.order()})"


def _short(x: Any) -> str:
    """A number with three significant digits and k, M, G, T or P."""
    value = float(x)
    for unit, size in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if value >= 0.9995 * size:
            return f"{shown(value / size)} {unit}"
    return shown(value)
