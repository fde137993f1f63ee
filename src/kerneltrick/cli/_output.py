"""What the commands print and write: terminals, files, and the progress of what fills them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from kerneltrick import _files
from kerneltrick._text import printable
from kerneltrick.analysis import ProgressReport
from kerneltrick.cli._arguments import Stopped, UsageError

WIDTH = 100


def console(file: TextIO | None = None) -> Console:
    """A terminal, or 100 columns of plain text where there is none."""
    found = Console(file=file or sys.stdout, highlight=False)
    found.width = min(found.width, WIDTH) if found.is_terminal else WIDTH
    return found


def plain(text: str, style: str = "") -> Text:
    """Lines of text that may hold words out of a file, without what a terminal would obey."""
    return Text("\n".join(map(printable, text.split("\n"))), style=style)


def check_writable(path: Path) -> None:
    """UsageError now, rather than after the work, if `path` cannot be written."""
    try:
        _files.check_writable(path)
    except OSError as error:
        raise UsageError(str(error)) from None


def check_outputs(outputs: Mapping[str, Path]) -> None:
    """UsageError if one cannot be written, or if two options name the same place."""
    places: dict[str, str] = {}
    for option, path in outputs.items():
        check_writable(path)
        place = "-" if _files.is_standard_output(path) else str(_files.regular_file(path) or path)
        if place in places:
            raise UsageError(f"{places[place]} and {option} both write {path}")
        places[place] = option


def outputs_of(html: Path | None, json: Path | None) -> dict[str, Path]:
    """The files that --html and --json ask for, by option, checked."""
    given = {"--html": html, "--json": json}
    outputs = {option: path for option, path in given.items() if path is not None}
    check_outputs(outputs)
    return outputs


def say_written(outputs: Mapping[str, Path], words: TextIO) -> None:
    for path in outputs.values():
        if not _files.is_standard_output(path):
            print(f"wrote {path}", file=words)


def words_stream(outputs: Mapping[str, Path]) -> TextIO:
    """Where words for people go: stderr, if standard output is taken by what a command writes."""
    taken = any(_files.is_standard_output(path) for path in outputs.values())
    return sys.stderr if taken else sys.stdout


def unfinished(outputs: Mapping[str, Path]) -> Path | None:
    """Where the finished pieces of an unfinished run are kept: beside the first file it writes."""
    for path in outputs.values():
        target = _files.regular_file(path)
        if target is not None:
            return target.with_name(f".{target.name}.unfinished")
    return None


@contextlib.contextmanager
def resumable(resume: Path | None) -> Iterator[None]:
    """Ctrl-C ends the work, and says whether the same command would go on."""
    try:
        yield
    except KeyboardInterrupt:
        would = "would go on where it was" if resume is None else "goes on where this one was"
        condition = "with --html or --json " if resume is None else ""
        raise Stopped(f"stopped; {condition}the same command {would}") from None


@contextlib.contextmanager
def progress_bar(quiet: bool) -> Iterator[ProgressReport | None]:
    """A bar on stderr, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (BarColumn(24), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
    stderr = Console(stderr=True)
    with Progress(*columns, TextColumn("{task.description}"), console=stderr, transient=True) as p:
        task = p.add_task("", total=None)

        def report(what: str, done: int, total: int) -> None:
            p.update(task, description=what, completed=done, total=total)

        yield report
