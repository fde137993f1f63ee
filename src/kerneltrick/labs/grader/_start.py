"""The student folders: where they are, and a copy of one to work in."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from kerneltrick.labs.grader._lab import Lab

_LEFT_OUT = {"__pycache__", ".pytest_cache", ".ruff_cache"}
_OUTWARD = re.compile(
    r"\[([^]]+)\]\(\.\./[^)]*\)"
)  # links out of the folder lead nowhere in a copy


def folder(lab: Lab) -> Path:
    """The student folder of a lab: in the installed package, or in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for home in (package, package.parents[2] / "labs"):
        if (home / lab.folder / lab.file).is_file():
            return home / lab.folder
    raise FileNotFoundError(f"the folder of lab {lab.number} was not installed with kerneltrick")


def start(lab: Lab, target: Path) -> list[Path]:
    """Copy the student folder to `target`: the files that were written.

    FileExistsError, and nothing is written, if one of them exists already.
    """
    origin = folder(lab)
    files = [
        path.relative_to(origin)
        for path in sorted(origin.rglob("*"))
        if path.is_file() and not _LEFT_OUT & set(path.parts)
    ]
    for name in files:
        if (target / name).exists() or (target / name).is_symlink():
            raise FileExistsError(f"{target / name} exists already; nothing was written")
    written: list[Path] = []
    made: list[Path] = []
    try:
        for name in files:
            path = target / name
            for parent in [p for p in (*reversed(path.parents),) if not p.exists()]:
                parent.mkdir()
                made.append(parent)
            text = (origin / name).read_text(encoding="utf-8")
            if path.suffix == ".md":
                text = _OUTWARD.sub(r"\1", text)
            with path.open("x", encoding="utf-8") as file:
                written.append(path)
                file.write(text)
    except BaseException:
        for path in reversed(written):
            path.unlink(missing_ok=True)
        for parent in reversed(made):
            with contextlib.suppress(OSError):
                parent.rmdir()
        raise
    return written
