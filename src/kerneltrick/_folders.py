"""What a file or folder holds: the one place that knows all that commands write and read."""

from __future__ import annotations

import enum
import json
import os
from pathlib import Path
from typing import Any


class Kind(enum.Enum):
    """What a place holds; the values are how a sentence calls it."""

    TRAINED = "a model of `kerneltrick train`"
    LINEARIZED = "a linearised model"
    TRANSFORMERS = "a model of transformers"
    ATTENTION = "queries, keys and values"
    MAPS = "fitted maps"
    OTHER = "something else"
    NOTHING = "nothing"  # no such file or folder; it may be a name on the hub


_FORMATS = {
    "kerneltrick.LanguageModel/1": Kind.TRAINED,
    "kerneltrick.qkv/1": Kind.ATTENTION,
    "kerneltrick.FittedMaps/1": Kind.MAPS,
}


def kind_of(place: str | os.PathLike[str]) -> Kind:
    """Say what a file or folder holds, without loading it.

    >>> kind_of("gpt2")
    <Kind.NOTHING: 'nothing'>
    """
    path = Path(place)
    if path.is_dir():
        if (path / "config.json").is_file():
            linearized = _config(path).get("model_type") == "kerneltrick"
            return Kind.LINEARIZED if linearized else Kind.TRANSFORMERS
        if all((path / f"{name}.npy").is_file() for name in "qkv"):
            return Kind.ATTENTION
        found = _FORMATS.get(_format(path / "model.safetensors"))
        return Kind.TRAINED if found is Kind.TRAINED else Kind.OTHER
    if not path.exists():
        return Kind.NOTHING
    if path.suffix in (".npz", ".npy"):
        return Kind.ATTENTION
    found = _FORMATS.get(_format(path), Kind.OTHER)
    return Kind.OTHER if found is Kind.TRAINED else found  # a model is its folder


def _config(folder: Path) -> dict[str, Any]:
    try:
        found = json.loads((folder / "config.json").read_text("utf-8"))
    except (OSError, ValueError):  # whoever loads the model says what is wrong with it
        return {}
    return found if isinstance(found, dict) else {}


def _format(path: Path) -> str:
    """The format that the header of a safetensors file names, or nothing."""
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if size <= path.stat().st_size else {}
        return str(header["__metadata__"]["format"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
