"""Read tensors from untrusted .safetensors files, and write new files.

The whole header is checked for consistency and against the size of the file before any tensor is
read. Each tensor is then read piece by piece into its array.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from kerneltrick.analysis._npy import AXES, PIECE, FormatError, Numbers, Read, exactly, fill, native

SAFETENSORS_HEADER = 2 << 20  # bytes; Python needs up to twenty times as much to parse it

_SAFE_DTYPES = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "BF16": "<u2"}
_WRITTEN = {"F16": "<f2", "F32": "<f4", "F64": "<f8", "U64": "<u8"}


class Tensor(NamedTuple):
    """The type, shape and place of one tensor in a `.safetensors` file."""

    dtype: str
    shape: tuple[int, ...]
    start: int  # in the file
    stop: int

    @property
    def loaded(self) -> np.dtype[Any]:
        """The dtype after loading: NumPy has no bfloat16, so it becomes float32."""
        return np.dtype("f4" if self.dtype == "BF16" else _SAFE_DTYPES[self.dtype])


class SafetensorsFile:
    """The checked header of a `.safetensors` file; tensors are read on demand."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = exactly(file.read, 8, "the length of its header")
            (length,) = struct.unpack("<Q", head)
            if length > min(SAFETENSORS_HEADER, size - 8):
                raise FormatError(
                    f"it declares a header of {length:,} bytes; the file has {size:,}, and at most "
                    f"{SAFETENSORS_HEADER:,} are read"
                )
            text = exactly(file.read, length, "its header")
        header = _json(text)
        self.metadata: dict[str, str] = header.pop("__metadata__", {})
        if not isinstance(self.metadata, dict) or not all(
            isinstance(value, str) for value in self.metadata.values()
        ):
            raise FormatError("its __metadata__ is not a table of texts")
        self.tensors = {name: _tensor(name, entry, 8 + length) for name, entry in header.items()}
        place = 8 + length
        for name, tensor in sorted(self.tensors.items(), key=lambda item: item[1][2:]):
            if tensor.start != place:
                raise FormatError(f"{name} starts at byte {tensor.start}, not {place}")
            place = tensor.stop
        if place != size:
            raise FormatError(f"its header describes {place:,} bytes but the file has {size:,}")

    def check_dtype(self, name: str) -> None:
        dtype = self.tensors[name].dtype
        if dtype not in _SAFE_DTYPES:
            raise FormatError(f"{name} has dtype {dtype}; expected F16, BF16, F32 or F64")

    def read(self, name: str, out: Numbers | None = None) -> Numbers:
        """Read a tensor, into the contiguous array `out` if it is given."""
        self.check_dtype(name)
        tensor = self.tensors[name]
        if out is None:
            out = np.empty(tensor.shape, tensor.loaded)
        with self.path.open("rb") as file:
            file.seek(tensor.start)
            if tensor.dtype == "BF16":
                _fill_bfloat16(file.read, out)
            else:
                fill(file.read, out)
        return native(out)


def write_safetensors(
    stream: BinaryIO, tensors: Mapping[str, Numbers], metadata: Mapping[str, str]
) -> None:
    """Write tensors. Equal tensors give equal bytes, unlike with the safetensors library."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    place = 0
    for name, tensor in tensors.items():
        dtypes = [key for key, text in _WRITTEN.items() if np.dtype(text) == _little(tensor)]
        if not dtypes:
            raise TypeError(
                f"{name} has dtype {tensor.dtype}; expected float16, float32 or float64"
            )
        stop = place + tensor.nbytes
        entry = {"dtype": dtypes[0], "shape": list(tensor.shape), "data_offsets": [place, stop]}
        header[name], place = entry, stop
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # aligns the numbers
    if len(text) > SAFETENSORS_HEADER:
        raise ValueError(
            f"with the mask and the token texts, the header has {len(text):,} bytes; the limit is "
            f"{SAFETENSORS_HEADER:,}, so leave them out"
        )
    stream.write(struct.pack("<Q", len(text)) + text)
    for tensor in tensors.values():
        stream.write(np.ascontiguousarray(tensor, _little(tensor)).tobytes())


def _little(x: Numbers) -> np.dtype[Any]:
    return x.dtype.newbyteorder("<")


def _tensor(name: str, entry: Any, origin: int) -> Tensor:
    try:
        dtype, shape, (start, stop) = entry["dtype"], entry["shape"], entry["data_offsets"]
        numbers = [*shape, start, stop]
    except (TypeError, KeyError, ValueError):
        raise FormatError(f"{name} has no dtype, shape and data_offsets") from None
    if not isinstance(dtype, str) or any(type(x) is not int or x < 0 for x in numbers):
        raise FormatError(f"{name} has a dtype, shape or data_offsets that make no sense")
    if len(shape) > AXES or stop < start:
        raise FormatError(f"{name} has shape {shape} at bytes {start} to {stop}")
    if dtype in _SAFE_DTYPES:
        size = math.prod(shape) * np.dtype(_SAFE_DTYPES[dtype]).itemsize
        if size != stop - start:
            raise FormatError(
                f"{name} declares {tuple(shape)} of {dtype}, {size:,} bytes, in {stop - start:,}"
            )
    return Tensor(dtype, tuple(shape), origin + start, origin + stop)


def _json(text: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise FormatError("its header names something twice")
        return found

    try:
        header = json.loads(text.decode("utf-8"), object_pairs_hook=once)
    except FormatError:
        raise
    except (ValueError, RecursionError):
        raise FormatError("its header is not JSON") from None
    if not isinstance(header, dict):
        raise FormatError("its header is not a table of tensors")
    return header


def _fill_bfloat16(read: Read, out: Numbers) -> None:
    """Read bfloat16 numbers as float32, of which they are the upper half."""
    target = out.reshape(-1).view(np.uint32)
    for place in range(0, target.size, PIECE // 2):
        count = min(PIECE // 2, target.size - place)
        piece = np.frombuffer(exactly(read, 2 * count, "its numbers"), "<u2")
        target[place : place + count] = piece.astype(np.uint32) << 16
