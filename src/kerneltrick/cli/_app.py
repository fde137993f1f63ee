"""The commands."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NoReturn, cast

import typer

from kerneltrick._version import __version__
from kerneltrick.analysis import Comparison, compare_maps
from kerneltrick.cli._arguments import (
    DEFAULT_SYNTHETIC,
    DataError,
    UsageError,
    read_data,
    read_maps,
)
from kerneltrick.cli._output import check_writable, write
from kerneltrick.cli._table import show

FORMAT = "kerneltrick.compare/1"
SECONDS = 0.2  # of timing for each map

# click's UsageError, wherever this version of typer keeps click.
_ClickUsageError = cast(type[Exception], typer.BadParameter.__bases__[0])

app = typer.Typer(
    name="kerneltrick",
    help="Attention in linear time: which feature map can replace softmax here?",
    epilog="Exit codes: 0 done, 1 the data or the run failed, 2 wrong arguments.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit: 0 done, 1 the data or the run failed, 2 wrong arguments."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without "≥" still gets its table
    sys.exit(_run(list(sys.argv[1:] if arguments is None else arguments)))


def _run(arguments: list[str]) -> int:
    try:
        return app(arguments, prog_name="kerneltrick", standalone_mode=False) or 0
    except UsageError as error:
        return _fail(str(error), 2)
    except _ClickUsageError as error:
        message: str = getattr(error, "format_message", error.__str__)()
        return _fail(f"{message.rstrip('.')}; see kerneltrick --help", 2)
    except (DataError, ValueError, ArithmeticError) as error:
        return _fail(str(error), 1)
    except MemoryError:
        return _fail("not enough memory for data of this size", 1)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped", 130)


def _fail(message: str, code: int) -> int:
    print("kerneltrick: " + " ".join(message.split()), file=sys.stderr)
    return code


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"kerneltrick {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _kerneltrick(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command("version")
def _version() -> None:
    """Print the version."""
    _print_version(True)


@app.command("compare")
def _compare(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            show_default=False,
            help="A .npz or .safetensors file with arrays q, k and v: (n, d) or (…, heads, n, d). "
            "Without it, synthetic data.",
        ),
    ] = None,
    maps: Annotated[
        list[str] | None,
        typer.Option(
            "--maps",
            "--map",
            metavar="MAPS",
            show_default=False,
            help="Maps separated by commas, semicolons or spaces; may be given again. key=value "
            "belongs to the map before it: elu,favor:features=64,kind=trig,poly:degree=2 "
            "are three maps. Default: a spread of eleven.",
        ),
    ] = None,
    synthetic: Annotated[
        str | None,
        typer.Option(
            "--synthetic",
            metavar="TEXT",
            show_default=False,
            help="Made-up data, kind:key=value,… with keys n, d, scale and heads. "
            f"Default: {DEFAULT_SYNTHETIC}.",
        ),
    ] = None,
    causal: Annotated[
        bool, typer.Option("--causal/--full", help="Token i sees j ≤ i, or every token.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the synthetic data.")] = 0,
    json_path: Annotated[
        Path | None,
        typer.Option("--json", metavar="PATH", help="Also write the numbers to this file."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print no table.")] = False,
) -> None:
    """Compare feature maps with softmax: one table, a row a map."""
    if json_path is not None:
        check_writable(json_path)
    data, source = read_data(file, synthetic, seed)
    chosen = read_maps(maps, data)
    result = compare_maps(*data, chosen, causal=causal, seconds=SECONDS)
    if json_path is not None:
        write(json_path, _report(result, source))
    if not quiet:
        show(result, source)


def _report(result: Comparison, source: str) -> str:
    head = {"format": FORMAT, "version": __version__, "data": source}
    return json.dumps({**head, **result.to_dict()}, indent=2, ensure_ascii=False, allow_nan=False)
