"""The state of a model in ONNX: which inputs and outputs hold it, and what it is at the start."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any

import numpy as np
import onnx

KEY = "kerneltrick.state"  # the entry of a model's metadata that describes its state


@dataclasses.dataclass(frozen=True)
class StateInput:
    """A part of the state: the input `past`, the output `present`, and its value at the start."""

    past: str
    present: str
    shape: tuple[int, ...]  # without the batch, which is the first axis
    dtype: str  # NumPy's name
    start: float  # every number of it before the first token

    def empty(self, batch: int) -> np.ndarray[Any, Any]:
        """This part before the first token."""
        return np.full((batch, *self.shape), self.start, self.dtype)


def described(parts: list[StateInput]) -> str:
    """The parts as text for a model's metadata."""
    return json.dumps([dataclasses.asdict(part) for part in parts])


def state_inputs(path: str | os.PathLike[str]) -> list[StateInput]:
    """The parts of the state of a model that `export` wrote, in the order of its inputs.

    They are also in the metadata of the file, as JSON under `kerneltrick.state`, for programs in
    other languages.
    """
    model = onnx.load(os.fspath(path), load_external_data=False)
    found = {entry.key: entry.value for entry in model.metadata_props}
    if KEY not in found:
        raise ValueError(
            f"{os.fspath(path)} does not describe its state: write it with kerneltrick.onnx.export"
        )
    return [
        StateInput(**(part | {"shape": tuple(part["shape"])})) for part in json.loads(found[KEY])
    ]


def empty_state(path: str | os.PathLike[str], batch: int = 1) -> dict[str, np.ndarray[Any, Any]]:
    """The state inputs of a model that `export` wrote, before the first token of `batch` texts."""
    if batch < 0:
        raise ValueError(f"a batch cannot have {batch} texts")
    return {part.past: part.empty(batch) for part in state_inputs(path)}
