"""Finished pieces of long work, kept beside the output, so that a run that was killed goes on."""

from __future__ import annotations

import contextlib
import hashlib
import json
from pathlib import Path
from typing import Any

from kerneltrick._files import replacing


class Store:
    """Results by key: in memory, or also in a file, one JSON line each, appended as they come.

    A file of other work (another `run`) is begun anew; a torn last line is dropped.
    """

    def __init__(self, path: Path | None = None, run: str = "") -> None:
        self.path, self.run = path, run
        self.found: dict[str, Any] = {}
        self.resumed = 0
        if path is not None:
            self._read(path)

    def _read(self, path: Path) -> None:
        lines: list[str] = []
        with contextlib.suppress(FileNotFoundError):
            lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
        whole = _parse(lines[0]) if lines else None
        if isinstance(whole, dict) and whole.get("run") == self.run:
            for line in lines[1:]:
                entry = _parse(line)
                if isinstance(entry, dict) and set(entry) == {"key", "value"}:
                    self.found[entry["key"]] = entry["value"]
        self.resumed = len(self.found)
        text = json.dumps({"run": self.run}) + "\n"
        text += "".join(_line(key, value) for key, value in self.found.items())
        with replacing(path) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def get(self, key: str) -> Any:
        """The value, or None if that piece is still to be done."""
        return self.found.get(key)

    def put(self, key: str, value: Any) -> None:
        self.found[key] = value
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(_line(key, value))

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


def _line(key: str, value: Any) -> str:
    return json.dumps({"key": key, "value": value}, allow_nan=False) + "\n"


def _parse(line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError:
        return None
