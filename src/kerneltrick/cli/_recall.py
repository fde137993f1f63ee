"""`kerneltrick recall`: how much different mixers remember and track per byte of state."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from kerneltrick import recall as room
from kerneltrick import report
from kerneltrick._files import write
from kerneltrick.cli._arguments import DataError, UsageError, read_numbers, split_maps
from kerneltrick.cli._options import DaskAddress, HtmlPath, Jobs, JsonPath, Quiet
from kerneltrick.cli._output import (
    console,
    outputs_of,
    plain,
    resumable,
    say_written,
    show_progress,
    unfinished,
    words_stream,
)
from kerneltrick.cli._train import in_options
from kerneltrick.cli._workers import workers

if TYPE_CHECKING:
    from typing import TextIO

OPTIONS = {"hidden_size": "--widths"}  # what sets the things that the library calls by these names


def recall_command(
    preset: Annotated[
        str,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="minutes: a small task that takes a quarter of an hour on two CPUs. paper: the "
            "task of the published results, which needs days on a large machine; we have not "
            "completed it.",
        ),
    ] = "minutes",
    task: Annotated[
        str,
        typer.Option(
            "--task",
            metavar="NAME",
            help="recall: values of keys. parity: is the number of ones so far odd? permutation: "
            "the product of the permutations so far. copy: repeat a text. selective: repeat the "
            "tokens among noise.",
        ),
    ] = "recall",
    mixers: Annotated[
        list[str] | None,
        typer.Option(
            "--mixers",
            metavar="MIXERS",
            show_default=False,
            help="Mixers to compare, separated by commas or spaces: softmax, elu, "
            "hedgehog@window=8, based:feature_dim=8, deltanet, … Default: from the preset.",
        ),
    ] = None,
    widths: Annotated[
        str | None,
        typer.Option(
            "--widths",
            metavar="NUMBERS",
            show_default=False,
            help="Model widths, e.g. 16,32,64. A wider model has a larger state. Default: from the "
            "preset.",
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            show_default=False,
            help="Models trained for each mixer, width and rate. Default: from the preset.",
        ),
    ] = None,
    steps: Annotated[
        int | None,
        typer.Option(
            "--steps",
            show_default=False,
            help="Training steps for each model. Default: from the preset.",
        ),
    ] = None,
    pairs: Annotated[
        int | None,
        typer.Option(
            "--pairs",
            show_default=False,
            help="Key–value pairs in each sequence. Default: from the preset.",
        ),
    ] = None,
    items: Annotated[
        int | None,
        typer.Option(
            "--items",
            show_default=False,
            help="For permutation, the things that are permuted: 3 for the group S₃, 5 for S₅. For "
            "selective, the tokens to repeat. Default: 3 and 8.",
        ),
    ] = None,
    moved: Annotated[
        int | None,
        typer.Option(
            "--moved",
            show_default=False,
            help="For permutation, the most things that one token moves: 2 for swaps. Default: all "
            "of them.",
        ),
    ] = None,
    length: Annotated[
        int | None,
        typer.Option(
            "--length",
            show_default=False,
            help="Tokens in each sequence. Default: from the preset.",
        ),
    ] = None,
    vocabulary: Annotated[
        int | None,
        typer.Option(
            "--vocabulary",
            show_default=False,
            help="Number of different tokens. Default: from the preset.",
        ),
    ] = None,
    rates: Annotated[
        str | None,
        typer.Option(
            "--rates",
            metavar="NUMBERS",
            show_default=False,
            help="Learning rates to try; the best one counts for each mixer and width. Default: "
            "from the preset.",
        ),
    ] = None,
    html_path: HtmlPath = None,
    json_path: JsonPath = None,
    jobs: Jobs = None,
    dask: DaskAddress = None,
    quiet: Quiet = False,
) -> None:
    """Compare how much mixers remember per byte of state, on trained models (extra: torch).

    The default task is multi-query associative recall: a sequence lists keys with their values and
    later repeats the keys; the model must answer with the values. --task chooses state tracking or
    copying instead. With --html or --json, finished models are stored beside that file until the
    end, so a killed run continues where it stopped.
    """
    outputs = outputs_of(html_path, json_path)
    changes: dict[str, Any] = {"seeds": seeds, "steps": steps}
    changes["mixers"] = tuple(split_maps(mixers)) if mixers else None
    found = read_numbers("--widths", widths)
    changes["widths"] = None if found is None else tuple(found)
    changes["rates"] = None if rates is None else _rates(rates)
    sizes = {"pairs": pairs, "items": items, "moved": moved, "length": length}
    sizes["vocabulary"] = vocabulary
    try:
        settings = room.preset(preset, task)
        changes["task"] = _sized(settings, sizes)
        given = {name: value for name, value in changes.items() if value is not None}
        settings = dataclasses.replace(settings, **given)
        resume = unfinished(outputs)
        room.check(settings, resume)
    except ImportError as error:
        raise DataError(str(error)) from None
    except ValueError as error:
        raise UsageError(in_options(str(error), OPTIONS)) from None
    with resumable(resume), workers(jobs, dask) as executor, show_progress(quiet) as progress:
        result = room.recall(settings, progress=progress, resume=resume, executor=executor)
    if html_path is not None:
        write(html_path, report.render_recall(result.to_dict()))
    if json_path is not None:
        write(json_path, result.to_json())
    if resume is not None:
        resume.unlink(missing_ok=True)
    if not quiet:
        words = words_stream(outputs)
        _show(result, words)
        say_written(outputs, words)


def _sized(settings: room.RecallSettings, sizes: dict[str, int | None]) -> Any:
    """The task with the sizes that were given."""
    task: Any = settings.task
    own = {name: value for name, value in sizes.items() if value is not None}
    known = [field.name for field in dataclasses.fields(task)]
    for name in own:
        if settings.trained_on:  # texts of several sizes, which are those of the published results
            raise UsageError(f"--{name} cannot change the texts of this preset: leave it out")
        if name not in known:
            raise UsageError(f"--{name} has no meaning for the task {task.name}: leave it out")
    return dataclasses.replace(task, **own)


def _rates(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise UsageError(f"--rates takes numbers such as 0.003,0.01, not {text!r}") from None


def _show(result: room.RecallResult, words: TextIO) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("mixer", "width", "state, bytes", "correct", "lowest", "highest", ""):
        side: Any = "left" if name == "mixer" else "right"
        table.add_column(name, justify=side, overflow="fold")
    for point in sorted(result.points, key=lambda point: point.bytes):
        shares = (f"{x:.3f}" for x in (point.accuracy, point.lowest, point.highest))
        cells = (str(point.width), f"{point.bytes:,}", *shares, "front" if point.on_front else "")
        table.add_row(plain(point.mixer), *cells)
    console(words).print(table)
    told = (
        f"{result.settings['task']['name']}: share of answers that are correct, mean over the "
        f"seeds (guessing: {result.settings['task']['chance']:.3f}); front: no smaller state has "
        "as many."
    )
    console(words).print(plain(told, "dim"))
