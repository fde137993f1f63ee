"""Finished pieces of long work, kept beside the output so that an interrupted run can continue."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

from kerneltrick._files import append, write


class Store:
    """Results by key, in memory and optionally in a file, one line each, appended as they come.

    A file may hold the pieces of several runs with different settings, each under a line with the
    key of its run. Only the pieces of this `run` are used; those of other runs stay in the file. A
    line that is torn or was changed, as its checksum shows, is dropped.
    """

    def __init__(self, path: Path | None = None, run: str = "") -> None:
        self.path, self.run = path, run
        self.found: dict[str, Any] = {}
        if path is not None:
            runs = _read(path)
            self.found = dict(map(json.loads, runs.pop(run, ())))
            _write(path, {**runs, run: [_text(*entry) for entry in self.found.items()]})
        self.resumed = len(self.found)

    def get(self, key: str) -> Any:
        """Return the value, or None if that piece is still to be done."""
        return self.found.get(key)

    def put(self, key: str, value: Any) -> None:
        self.found[key] = value
        if self.path is not None:
            append(self.path, _line(self.run, _text(key, value)))


def finish(path: Path) -> bool:
    """Remove the pieces of the run that used `path` last, now that its result is written elsewhere.

    Returns whether the file still holds pieces of other runs; otherwise it is deleted.
    """
    runs = list(_read(path).items())[:-1]
    others = {run: texts for run, texts in runs if texts}
    if others:
        _write(path, others)
    else:
        path.unlink(missing_ok=True)
    return bool(others)


def run_key(*parts: Any) -> str:
    """Return a hash that tells one piece of work from another; arrays count with their values."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.tobytes() if hasattr(part, "tobytes") else repr(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def _read(path: Path) -> dict[str, list[str]]:
    """The pieces of each run, as JSON texts, by the key of the run."""
    runs: dict[str, list[str]] = {}
    found = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
    run = None
    for line in filter(None, found.split("\n")):
        if not re.match("[0-9a-f]{16} ", line):
            run = line
            runs.setdefault(run, [])
        elif run is not None and line[:16] == _checksum(run, line[17:]):
            runs[run].append(line[17:])
    return runs


def _write(path: Path, runs: dict[str, list[str]]) -> None:
    parts = [f"{run}\n" + "".join(_line(run, x) for x in texts) for run, texts in runs.items()]
    write(path, "".join(parts))


def _text(key: str, value: Any) -> str:
    return json.dumps([key, value], allow_nan=False)


def _line(run: str, text: str) -> str:
    return f"{_checksum(run, text)} {text}\n"


def _checksum(run: str, text: str) -> str:
    return run_key(run, text)[:16]
