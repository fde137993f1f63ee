"""`kerneltrick conform`: which promises an operator keeps."""

from __future__ import annotations

import dataclasses
import importlib
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from kerneltrick import conformance
from kerneltrick._files import write
from kerneltrick._text import to_json
from kerneltrick._version import __version__
from kerneltrick.cli._arguments import DataError, UsageError
from kerneltrick.cli._options import Quiet
from kerneltrick.cli._output import console, outputs_of, plain, say_written, words_stream


def conform_command(
    operator: Annotated[
        str | None,
        typer.Argument(
            metavar="MODULE:NAME",
            help="Your own operator: a function on NumPy arrays, or a conformance.Operator. "
            "Default: the operators of this package.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            help=f"What your function computes: {', '.join(conformance.KINDS)}.",
        ),
    ] = None,
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Also check PyTorch, transformers, flash-linear-attention and ONNX Runtime.",
        ),
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option("--json", metavar="PATH", help="Write the results to this file; - is stdout."),
    ] = None,
    quiet: Quiet = False,
) -> None:
    """Check which promises an operator keeps: causality, padding, packing, decoding, NaN and more.

    Prints one row for each operator, and a short program for each failure. Exits with 1 if a
    promised check failed. In Python, `kerneltrick.conformance.check(operator, kind=...)` does it.
    """
    outputs = outputs_of(None, json)
    words = words_stream(outputs)
    rows: list[tuple[Any, Any]] = []
    if operator is None:
        if kind is not None:
            raise UsageError("--kind says what MODULE:NAME computes; give that too")
        for known, found in conformance.survey(conformance.known(peers=peers)):
            if not quiet and sys.stderr.isatty():
                print(f"checked {known.name}", file=sys.stderr)
            rows.append((known, found))
    else:
        if peers:
            raise UsageError("--peers checks what is installed; leave MODULE:NAME out")
        rows.append((None, _check_own(operator, kind)))
    if json is not None:
        write(json, to_json({"version": __version__, "operators": records(rows)}, indent=2) + "\n")
    if not quiet:
        _show(rows, words)
        say_written(outputs, words)
    if any(found is not None and found.failures for _, found in rows):
        raise typer.Exit(1)


def _check_own(text: str, kind: str | None) -> conformance.Conformance:
    module, colon, name = text.partition(":")
    if not (module and colon and name):
        raise UsageError(f"an operator is given as MODULE:NAME, such as my.module:f, not {text!r}")
    sys.path.insert(0, str(Path.cwd()))
    try:
        found = getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # the module may do anything
        raise DataError(f"cannot load {text}: {type(error).__name__}: {error}") from None
    finally:
        sys.path.pop(0)
    if isinstance(found, conformance.Operator):
        source = f"from {module} import {name} as operator"
        return conformance.check(dataclasses.replace(found, source=source), kind)
    if not callable(found):
        raise UsageError(
            f"{text} is of type {type(found).__name__}; give a function or a conformance.Operator"
        )
    if kind is None:
        raise UsageError(f"say what {name} computes: --kind {' | '.join(conformance.KINDS)}")
    return conformance.check(found, kind)


def records(rows: list[tuple[Any, Any]]) -> list[dict[str, Any]]:
    """The results as JSON has them."""
    return [
        {
            "operator": known.name if found is None else found.operator,
            "kind": known.kind if found is None else found.kind,
            "package": None if known is None else known.package,
            "version": None if known is None or found is None else known.version,
            "install": known.install if found is None else None,
            "results": []
            if found is None
            else [dataclasses.asdict(result) for result in found.results],
        }
        for known, found in rows
    ]


def _show(rows: list[tuple[Any, Any]], words: Any) -> None:
    out = console(words)
    names = [*conformance.CHECKS]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    table.add_column("operator", overflow="fold")
    for number in range(1, len(names) + 1):
        table.add_column(str(number), justify="center", no_wrap=True)
    for known, found in rows:
        if found is None:
            table.add_row(plain(f"{known.name}: not installed", "dim"), *[""] * len(names))
        else:
            table.add_row(plain(found.operator), *found.cells())
    out.print(table)
    for number, name in enumerate(names, start=1):
        out.print(plain(f"{number:2} {name}"))
    out.print(plain("✓ passed, ✗ failed, (✓) and (✗) not promised but holds or does not, – cannot"))
    for known in [known for known, found in rows if found is None]:
        out.print(plain(f"{known.name}: {known.install}", "dim"))
    for result in (result for _, found in rows if found for result in found.failures):
        out.print(plain(f"\n{result.operator}: {result.check}", "bold"))
        out.print(plain(f"{result.detail}\n\n{result.reproducer}"))
