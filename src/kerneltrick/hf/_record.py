"""`linearization.json`: how the model in a folder was made, which files and which text it has."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

RECORD = "linearization.json"
FILES, FITTED = "files", "fitted"  # keys of the list of files, and of the sketch of the text
RUN = "overlap"  # key of the length of runs in that sketch


def read_record(folder: str | os.PathLike[str]) -> dict[str, Any] | None:
    """Return how the model in a folder was made (losses, errors of heads), or None if unknown."""
    found = read_json(Path(folder) / RECORD)
    if found is None:
        return None
    return {name: x for name, x in found.items() if name not in (FILES, FITTED)}


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None
