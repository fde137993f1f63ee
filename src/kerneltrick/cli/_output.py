"""Files that appear whole or not at all, and the progress of what fills them."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from kerneltrick._files import replacing
from kerneltrick.analysis import ProgressReport
from kerneltrick.cli._arguments import DataError, UsageError


def check_writable(path: Path) -> None:
    """UsageError now, rather than after the work, if `path` cannot be written."""
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder")
    trial = path.with_name(f".{path.name}.{os.getpid()}.trial")
    try:
        trial.touch(exist_ok=False)
        trial.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def write(path: Path, text: str) -> None:
    """Write `path`, whole or not at all."""
    try:
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror or error}") from None


def unfinished(path: Path) -> Path:
    """Where the finished pieces of an unfinished run for `path` are kept."""
    return path.with_name(f".{path.name}.unfinished")


@contextlib.contextmanager
def progress_bar(quiet: bool) -> Iterator[ProgressReport | None]:
    """A bar on stderr, if that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    columns = (BarColumn(24), TextColumn("{task.percentage:>3.0f} %"), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, TextColumn("{task.description}"), console=console, transient=True) as p:
        task = p.add_task("", total=None)

        def report(what: str, done: int, total: int) -> None:
            p.update(task, description=what, completed=done, total=total)

        yield report
