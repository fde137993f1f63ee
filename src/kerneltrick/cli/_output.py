"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from kerneltrick.cli._arguments import DataError, UsageError


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{os.getpid()}.part")


def check_writable(path: Path) -> None:
    """UsageError now, rather than after the work, if `path` cannot be written."""
    if path.is_dir():
        raise UsageError(f"cannot write {path}: it is a folder")
    trial = _beside(path)
    try:
        trial.touch(exist_ok=False)
        trial.unlink()
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None


def write(path: Path, text: str) -> None:
    """Write beside the target and rename: a reader never sees half a file."""
    temporary = _beside(path)
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    except OSError as error:
        raise DataError(f"cannot write {path}: {error.strerror}") from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()
