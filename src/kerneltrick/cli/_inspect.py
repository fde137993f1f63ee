"""`kerneltrick inspect`: what the layers of a model attend to, linear ones too."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from kerneltrick import report
from kerneltrick._files import write
from kerneltrick._text import shown
from kerneltrick.cli._arguments import DataError, UsageError
from kerneltrick.cli._models import check_model
from kerneltrick.cli._options import HtmlPath, JsonPath, Quiet
from kerneltrick.cli._output import (
    console,
    outputs_of,
    plain,
    say_written,
    show_progress,
    words_stream,
)

if TYPE_CHECKING:
    from typing import TextIO


def inspect_command(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            show_default=False,
            help="Folder written by `kerneltrick train` or `linearize`, folder of a model of "
            "transformers, or its name on the hub. Default: a small hybrid that the package "
            "carries.",
        ),
    ] = None,
    text: Annotated[
        Path | None,
        typer.Option(
            "--text",
            metavar="FILE",
            show_default=False,
            help="Text to read, UTF-8. Default: a paragraph that the package carries.",
        ),
    ] = None,
    tokens: Annotated[
        int, typer.Option("--tokens", min=2, help="Tokens to read from the start of the text.")
    ] = 192,
    html_path: HtmlPath = None,
    json_path: JsonPath = None,
    quiet: Quiet = False,
) -> None:
    """Show what every head of a model attends to on a text, exactly (extra: torch or hf).

    Layers with linear attention, decays or the delta rule have no attention matrix, but imply one.
    The command measures how far each head reaches, how its state decays, what its corrections
    replace, and says what kind of memory each layer is. --html writes a page with pictures.
    """
    outputs = outputs_of(html_path, json_path)
    if model is not None:
        check_model("inspect", model)
    words = _read(text)
    try:
        from kerneltrick import inspection
    except ImportError as error:
        raise DataError(str(error)) from None
    try:
        if words is None:
            words = inspection.default_text()
        source = inspection.load(model)
        numbers, pieces = source.read(words, tokens)
        with show_progress(quiet) as progress:
            found = inspection.inspect(
                source.model, numbers, words=pieces, source=source.name, progress=progress
            )
    except (OSError, ValueError) as error:
        raise UsageError(str(error)) from None
    if json_path is not None:  # first, because drawing the page may fail
        write(json_path, found.to_json())
    if html_path is not None:
        values = {**found.to_dict(), "pictures": found.pictures()}
        write(html_path, report.render_inspection(values))
    if not quiet:
        stream = words_stream(outputs)
        _show(found, stream)
        say_written(outputs, stream)


def _read(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8: {error}") from None
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from None


def _show(found: Any, words: TextIO) -> None:
    from kerneltrick.inspection import MEASURES

    shown = [each for each in MEASURES.values() if each.label]
    rows = [
        [_cell(each, [getattr(head, each.name) for head in layer.heads]) for each in shown]
        for layer in found.layers
    ]
    # A narrow terminal breaks headings, but no number and no kind of memory.
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    table.add_column("layer", justify="right", overflow="fold")
    table.add_column("memory", no_wrap=True)
    for each, cells in zip(shown, zip(*rows, strict=True), strict=True):
        least = max(map(len, cells))
        table.add_column(each.label, justify="right", overflow="fold", min_width=least)
    for at, (layer, row) in enumerate(zip(found.layers, rows, strict=True)):
        table.add_row(str(at), layer.memory, *row)
    console(words).print(table)
    for operator in dict.fromkeys(layer.operator for layer in found.layers):
        own = [str(at) for at, layer in enumerate(found.layers) if layer.operator == operator]
        console(words).print(plain(f"{operator}: layer{'s' * (len(own) > 1)} {', '.join(own)}"))
    for note in found.notes:
        console(words).print(plain(note))
    console(words).print(
        plain(
            "Means over the heads of a layer. reach, 90 %: the last tokens that hold half and 90 % "
            "of the weight; half-life: in tokens.",
            "dim",
        )
    )


def _cell(each: Any, values: list[float]) -> str:
    import math

    from kerneltrick.analysis import mean

    x = mean(values)
    if not math.isfinite(x):
        return "–" if math.isnan(x) else "∞"
    return f"{x:.0%}" if each.style == "percent" else shown(x)
