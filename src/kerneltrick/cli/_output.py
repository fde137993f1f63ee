"""Output of the commands: terminal, files and progress."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from kerneltrick import _files
from kerneltrick._text import printable
from kerneltrick.analysis import ProgressReport, finish
from kerneltrick.cli._arguments import Stopped, UsageError

WIDTH = 100
PAUSE = 30.0  # seconds between lines of progress where there is no terminal


def console(file: TextIO | None = None) -> Console:
    """Return a console for `file`: the terminal, or plain text of 100 columns."""
    found = Console(file=file or sys.stdout, highlight=False)
    found.width = min(found.width, WIDTH) if found.is_terminal else WIDTH
    return found


def plain(text: str, style: str = "") -> Text:
    """Return text that may come from a file, without control characters."""
    return Text("\n".join(map(printable, text.split("\n"))), style=style)


def check_writable(path: Path) -> None:
    """Raise UsageError now, rather than after the work, if `path` cannot be written."""
    try:
        _files.check_writable(path)
    except OSError as error:
        raise UsageError(str(error)) from None


def check_outputs(outputs: Mapping[str, Path]) -> None:
    """Raise UsageError if an output cannot be written, or if two options name the same place."""
    places: dict[str, str] = {}
    for option, path in outputs.items():
        check_writable(path)
        place = "-" if _files.is_standard_output(path) else str(_files.regular_file(path) or path)
        if place in places:
            raise UsageError(f"{places[place]} and {option} both write {path}")
        places[place] = option


def outputs_of(html: Path | None, json: Path | None) -> dict[str, Path]:
    """Return the files given by --html and --json, by option, after checking them."""
    given = {"--html": html, "--json": json}
    outputs = {option: path for option, path in given.items() if path is not None}
    check_outputs(outputs)
    return outputs


def say_written(outputs: Mapping[str, Path], words: TextIO) -> None:
    for path in outputs.values():
        if not _files.is_standard_output(path):
            print(f"wrote {path}", file=words)


def words_stream(outputs: Mapping[str, Path]) -> TextIO:
    """Return the stream for messages: stderr if standard output is one of the outputs."""
    taken = any(_files.is_standard_output(path) for path in outputs.values())
    return sys.stderr if taken else sys.stdout


def unfinished(outputs: Mapping[str, Path]) -> Path | None:
    """Return where an unfinished run saves its finished pieces: beside its first output file."""
    for path in outputs.values():
        target = _files.regular_file(path)
        if target is not None:
            return target.with_name(f".{target.name}.unfinished")
    return None


def drop_finished(resume: Path | None, quiet: bool) -> None:
    """Remove the saved pieces of a finished run; say if pieces of other runs remain."""
    if resume is not None and finish(resume) and not quiet:
        print(
            f"note: {resume} keeps the finished work of an interrupted run with other settings; "
            "repeat that command to continue it, or delete the file",
            file=sys.stderr,
        )


@contextlib.contextmanager
def resumable(resume: Path | None) -> Iterator[None]:
    """Turn Ctrl-C into `Stopped`, with a message that says how to continue."""
    try:
        yield
    except KeyboardInterrupt:
        kept = "run the same command again to continue"
        lost = "nothing was saved; with --html or --json, an interrupted run can be continued"
        raise Stopped(f"stopped; {lost if resume is None else kept}") from None


@contextlib.contextmanager
def show_progress(quiet: bool) -> Iterator[ProgressReport | None]:
    """Show a bar on a terminal. Elsewhere, print a line to stderr every half minute."""
    if quiet:
        yield None
    elif sys.stderr.isatty():
        with _bar() as report:
            yield report
    else:
        yield _lines()


@contextlib.contextmanager
def _bar() -> Iterator[ProgressReport]:
    columns = (BarColumn(24), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
    stderr = Console(stderr=True)
    with Progress(*columns, TextColumn("{task.description}"), console=stderr, transient=True) as p:
        task = p.add_task("", total=None)

        def report(what: str, done: int, total: int) -> None:
            p.update(task, description=what, completed=done, total=total)

        yield report


def _lines() -> ProgressReport:
    last, stage, begun = time.monotonic(), -1, (0.0, 0)

    def report(what: str, done: int, total: int) -> None:
        nonlocal last, stage, begun
        now = time.monotonic()
        if total != stage:
            stage, begun = total, (now, done)
        if now - last >= PAUSE:
            last, pieces = now, done - begun[1]
            left = (now - begun[0]) / pieces * (total - done) if pieces > 0 else None
            more = "" if left is None else f", about {_duration(left)} left"
            print(f"{what}: {done}/{total}{more}", file=sys.stderr, flush=True)

    return report


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"
