"""A map as a safetensors file: its parameters as text, its weights as arrays."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import numpy as np

from kerneltrick._arrays import Array, as_numpy, constant, is_array
from kerneltrick._files import read_tensors, write
from kerneltrick.maps._base import FeatureMap
from kerneltrick.maps._registry import from_fields, is_ours

FORMAT = "kerneltrick.FeatureMap/1"


def save(feature_map: FeatureMap, path: str | os.PathLike[str]) -> None:
    """Write a map with its weights; the file appears whole or not at all, `-` is standard output.

    >>> import numpy as np, tempfile
    >>> from kerneltrick import maps
    >>> learned = maps.Hedgehog(np.eye(4), activation="exp", key_weight=2 * np.eye(4))
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     maps.save(learned, folder + "/map.safetensors")
    ...     again = maps.load(folder + "/map.safetensors")
    >>> str(again) == str(learned)
    True
    """
    import safetensors.numpy  # it would slow every import

    values, tensors = to_fields(feature_map)
    write(path, safetensors.numpy.save(tensors, {"format": FORMAT, **values}))


def to_fields(feature_map: FeatureMap) -> tuple[dict[str, str], dict[str, Any]]:
    """The name and parameters of a map as texts, and its weights as NumPy arrays."""
    if not is_ours(feature_map):
        raise TypeError(
            f"a map of this package can be saved, not {type(feature_map).__name__}: of what is "
            f"your own, keep the code"
        )
    fields = {f.name: getattr(feature_map, f.name) for f in dataclasses.fields(feature_map)}
    tensors = {name: np.ascontiguousarray(as_numpy(x)) for name, x in fields.items() if is_array(x)}
    values = {name: str(x) for name, x in fields.items() if x is not None and name not in tensors}
    return {"name": feature_map.name, **values}, tensors


def load(path: str | os.PathLike[str], like: Array | None = None) -> FeatureMap:
    """Read a map back, its weights as NumPy arrays or as arrays beside `like`, in its dtype."""
    metadata, tensors = read_tensors(path, "file of a map")
    found = metadata.pop("format", None)
    if found != FORMAT:
        raise ValueError(
            f"{os.fspath(path)} is not a map of this package: expected format {FORMAT!r}, found "
            f"{found!r}"
        )
    if like is not None:
        tensors = {name: constant(x, like) for name, x in tensors.items()}
    try:
        return from_fields(metadata.pop("name", ""), metadata, tensors)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{os.fspath(path)} is not a map of this package: {error}") from None
