"""Finished pieces of long work, kept beside the output, so that a run that was killed goes on."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from kerneltrick._files import append, write


class Store:
    """Results by key: in memory, or also in a file, one line each, appended as they come.

    A file of other work (another `run`) is begun anew; a line that is torn or was changed, as its
    checksum tells, is dropped.
    """

    def __init__(self, path: Path | None = None, run: str = "") -> None:
        self.path, self.run = path, run
        self.found: dict[str, Any] = {}
        if path is not None:
            self._read(path)
        self.resumed = len(self.found)

    def _read(self, path: Path) -> None:
        lines: list[str] = []
        if path.is_file():
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        if lines and lines[0] == self.run:
            for line in lines[1:]:
                checksum, _, text = line.partition(" ")
                if checksum == self._checksum(text):
                    key, value = json.loads(text)
                    self.found[key] = value
        kept = (self._line(*entry) for entry in self.found.items())
        write(path, "".join([f"{self.run}\n", *kept]))

    def get(self, key: str) -> Any:
        """The value, or None if that piece is still to be done."""
        return self.found.get(key)

    def put(self, key: str, value: Any) -> None:
        self.found[key] = value
        if self.path is not None:
            append(self.path, self._line(key, value))

    def _line(self, key: str, value: Any) -> str:
        text = json.dumps([key, value], allow_nan=False)
        return f"{self._checksum(text)} {text}\n"

    def _checksum(self, text: str) -> str:
        return run_key(self.run, text)[:16]

    def close(self) -> None:
        """The work is done and written elsewhere: remove the file."""
        if self.path is not None:
            with contextlib.suppress(FileNotFoundError):
                self.path.unlink()


def run_key(*parts: Any) -> str:
    """A hash that tells one piece of work from another; arrays count with their values."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.tobytes() if hasattr(part, "tobytes") else repr(part).encode())
        digest.update(b"\0")
    return digest.hexdigest()
