"""Loading and saving of queries, keys and values; never with pickle."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kerneltrick._files import AnyPath, regular_file, writing
from kerneltrick._text import to_json
from kerneltrick.analysis._data import AttentionData
from kerneltrick.analysis._npy import FormatError, read_npy, read_npz
from kerneltrick.analysis._safetensors import SafetensorsFile, write_safetensors

Numbers: TypeAlias = NDArray[Any]

SUFFIXES = (".npz", ".safetensors")
NAMES = ("q", "k", "v")
AXES: tuple[Literal["heads,n,d"], Literal["n,heads,d"]] = ("heads,n,d", "n,heads,d")
FORMAT = "kerneltrick.qkv/1"

_KEY = re.compile(r"layers\.(0|[1-9][0-9]{0,5})\.([qkv])")
_TRIO = re.compile(r"(|.*[_.\- ])([qkv])\.npy")


def load_attention(
    path: AnyPath | Sequence[AnyPath], *, axes: Literal["heads,n,d", "n,heads,d"] = AXES[0]
) -> AttentionData:
    """Load a `.safetensors` or `.npz` file, or three `.npy` files; all sizes are checked.

    A `.safetensors` file has keys `layers.{i}.q|k|v` as written by `save`, or q, k and v. A `.npz`
    file has q, k and v. For `.npy`, give a folder with q.npy, k.npy and v.npy, one of three files
    such as run_q.npy, or all three paths. Arrays are (n, d), (heads, n, d) or (layers, heads, n, d)
    in float16, float32 or float64; bfloat16 becomes float32. With `axes="n,heads,d"` they are
    (n, heads, d) or (layers, n, heads, d). ValueError or TypeError says what is wrong with a file.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "qkv.npz")
    ...     np.savez(path, **dict(zip("qkv", np.ones((3, 2, 10, 4)))))
    ...     load_attention(path)
    AttentionData(1 layer, 2 heads, n = 10, d = 4, float64, 'qkv.npz')
    """
    if axes not in AXES:
        raise ValueError(f"axes must be one of {' and '.join(map(repr, AXES))}, not {axes!r}")
    known: dict[str, Any] = {}
    if isinstance(path, str | os.PathLike):
        source = Path(path)
        if source.is_dir() or source.suffix == ".npy":
            arrays = _read_trio(_trio(source))
        else:
            arrays, known = _read(source)
    else:
        paths = [Path(one) for one in path]
        if len(paths) != 3:
            raise ValueError(f"expected three .npy files for q, k and v, not {len(paths)}")
        source = Path(", ".join(one.name for one in paths))
        arrays = _read_trio(paths)
    try:
        if axes != AXES[0]:
            arrays = {name: _heads_first(x) for name, x in arrays.items()}
        q, k, v = (arrays[name] for name in NAMES)
        if "layers" in known:
            return AttentionData(q, k, v, **{"source": source.name, **known})
        return AttentionData.from_arrays(q, k, v, source=source.name)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{source}: {error}") from None


def save(data: AttentionData, path: AnyPath) -> None:
    """Write `data` to a `.safetensors` file, whole or not at all; `-` means standard output.

    The keys are `layers.{i}.q|k|v`. The metadata holds JSON texts: scaling, causal, mask, tokens,
    heads, excluded, source, and the format `kerneltrick.qkv/1`.
    """
    if Path(path).suffix != ".safetensors" and regular_file(path) is not None:
        raise ValueError(f"{path}: expected a file named *.safetensors")
    tensors = {
        f"layers.{layer}.{name}": getattr(data, name)[row]
        for row, layer in enumerate(data.layers)
        for name in NAMES
    }
    values = {
        "scaling": data.scale,
        "causal": data.causal,
        "mask": None if data.mask is None else data.mask.tolist(),
        "tokens": data.tokens,
        "heads": data.heads,
        "excluded": data.excluded,
        "source": data.source,
    }
    metadata = {key: to_json(value) for key, value in values.items()}
    with writing(path) as stream:
        write_safetensors(stream, tensors, {"format": FORMAT, **metadata})


def _heads_first(x: Numbers) -> Numbers:
    if x.ndim < 3:
        raise ValueError(f"axes n,heads,d need arrays of three or four axes, not {x.shape}")
    return np.ascontiguousarray(np.swapaxes(x, -3, -2))


def _read_trio(paths: Sequence[Path]) -> dict[str, Numbers]:
    arrays = {}
    for name, path in zip(NAMES, paths, strict=True):
        if not path.is_file():
            names = ", ".join(one.name for one in paths)
            raise FileNotFoundError(f"there is no file {path}; expected the three files {names}")
        try:
            arrays[name] = read_npy(path)
        except FormatError as error:
            raise ValueError(f"{path} cannot be read: {error}") from None
    return arrays


def _trio(path: Path) -> list[Path]:
    """Return the three .npy files in a folder, or next to the given one."""
    if path.is_dir():
        return [path / f"{name}.npy" for name in NAMES]
    match = _TRIO.fullmatch(path.name)
    if match is None:
        raise ValueError(
            f"{path}: expected three files q.npy, k.npy and v.npy, or names that end like run_q.npy"
        )
    return [path.with_name(f"{match[1]}{name}.npy") for name in NAMES]


def _read(path: Path) -> tuple[dict[str, Numbers], dict[str, Any]]:
    """Read q, k and v, and the fields of AttentionData that a captured file contains."""
    if path.suffix not in SUFFIXES:
        raise ValueError(
            f"{path}: expected a file named *.npz or *.safetensors, or three named *.npy"
        )
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        if path.suffix == ".npz":
            arrays, found = read_npz(path, NAMES)
        else:
            file = SafetensorsFile(path)
            found = list(file.tensors)
            if any(_KEY.fullmatch(name) for name in found):
                return _read_layers(file)
            arrays = {name: file.read(name) for name in NAMES if name in found}
    except FormatError as error:
        raise ValueError(f"{path} cannot be read: {error}") from None
    missing = [name for name in NAMES if name not in arrays]
    if missing:
        listing = ", ".join(sorted(found)[:20]) or "none"
        more = f" and {len(found) - 20} more" if len(found) > 20 else ""
        raise ValueError(
            f"{path} has no array {missing[0]!r}; expected q, k and v, found {listing}{more}"
        )
    return arrays, {}


def _read_layers(file: SafetensorsFile) -> tuple[dict[str, Numbers], dict[str, Any]]:
    matches = [match for name in file.tensors if (match := _KEY.fullmatch(name))]
    layers = sorted({int(match[1]) for match in matches})
    both = [name for name in NAMES if name in file.tensors]
    if both:
        raise FormatError(f"it has both {both[0]!r} and layers.{layers[0]}.{both[0]}")
    arrays = {}
    for name in NAMES:
        keys = [f"layers.{layer}.{name}" for layer in layers]
        for key in keys:
            if key not in file.tensors:
                raise FormatError(f"it has no array {key!r}; expected q, k and v of every layer")
            file.check_dtype(key)
        first = file.tensors[keys[0]]
        for key in keys:
            tensor = file.tensors[key]
            if (tensor.shape, tensor.dtype) != (first.shape, first.dtype) or len(tensor.shape) != 3:
                raise FormatError(
                    f"{key} is {tensor.shape} of {tensor.dtype} and {keys[0]} is {first.shape} of "
                    f"{first.dtype}; expected (heads, n, d), the same for every layer"
                )
        stack = np.empty((len(layers), *first.shape), first.loaded)
        for row, key in enumerate(keys):
            file.read(key, stack[row])
        arrays[name] = stack
    return arrays, {"layers": tuple(layers), **_known(file.metadata)}


def _known(metadata: dict[str, str]) -> dict[str, Any]:
    """Return the fields of AttentionData in the metadata of a captured file."""
    form = metadata.get("format", "")
    if not form.startswith("kerneltrick."):
        return {}
    if form != FORMAT:
        raise FormatError(f"its format is {form!r}; expected {FORMAT!r}")
    values = {}
    for key, text in metadata.items():
        try:
            whole = float if key == "scaling" else int  # float accepts any number of digits
            values[key] = None if key == "format" else json.loads(text, parse_int=whole)
        except (ValueError, RecursionError):
            raise FormatError(f"its metadata {key} is not JSON") from None
    known: dict[str, Any] = {}
    for key, field, kind, expected in (
        ("scaling", "scale", float, "a number"),
        ("causal", "causal", bool, "true or false"),
        ("source", "source", str, "a text"),
    ):
        value = values.get(key)
        if value is not None:
            if not isinstance(value, kind):
                raise FormatError(f"its metadata {key} is {metadata[key][:40]}, not {expected}")
            known[field] = value
    for key, each in (("mask", bool), ("tokens", str), ("heads", int), ("excluded", list)):
        value = values.get(key)
        if value is not None:
            if not isinstance(value, list) or any(type(item) is not each for item in value):
                raise FormatError(f"its metadata {key} is not a list of {each.__name__}")
            known[key] = np.array(value, np.bool_) if key == "mask" else tuple(value)
    known["excluded"] = tuple(_pair(item) for item in known.get("excluded", ()))
    return known


def _pair(item: list[Any]) -> tuple[int, int]:
    if len(item) != 2 or any(type(number) is not int for number in item):
        raise FormatError("its metadata excluded is not a list of layer and head numbers")
    return item[0], item[1]
