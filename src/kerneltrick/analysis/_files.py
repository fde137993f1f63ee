"""Queries, keys and values from a file; never by pickle."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import safetensors

from kerneltrick.analysis._blocks import check_finite
from kerneltrick.analysis._synthetic import QKV
from kerneltrick.attention._arguments import check_inputs

SUFFIXES = (".npz", ".safetensors")
NAMES = ("q", "k", "v")


def load(path: str | os.PathLike[str]) -> QKV:
    """q, k and v of an `.npz` or `.safetensors` file, checked: shapes, dtypes, no NaN.

    Arrays are (..., heads, n, d) or (n, d). ValueError or TypeError says what is wrong with a file.

    >>> import os, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = os.path.join(folder, "qkv.npz")
    ...     np.savez(path, **dict(zip("qkv", np.ones((3, 2, 10, 4)))))
    ...     load(path).q.shape
    (2, 10, 4)
    """
    path = Path(path)
    if path.suffix not in SUFFIXES:
        raise ValueError(f"{path}: expected a file named *.npz or *.safetensors")
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    try:
        arrays = _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path)
    except Exception as error:  # zipfile, zlib, NumPy and safetensors each raise their own
        raise ValueError(f"{path} cannot be read: {_reason(error)}") from None
    missing = [name for name in NAMES if name not in arrays]
    if missing:
        found = ", ".join(sorted(arrays)) or "none"
        raise ValueError(f"{path} has no array {missing[0]!r}; expected q, k and v, found {found}")
    data = QKV(*(arrays[name] for name in NAMES))
    try:
        check_inputs("attention", *data)
        check_finite(q=data.q, k=data.k, v=data.v)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{path}: {error}") from None
    return data


def _read_npz(path: Path) -> Mapping[str, Any]:
    with path.open("rb") as handle, np.load(handle, allow_pickle=False) as file:
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise ValueError("it is not an archive of arrays")
        return {name: file[name] if name in NAMES else None for name in file.files}


def _read_safetensors(path: Path) -> Mapping[str, Any]:
    with safetensors.safe_open(path, framework="numpy") as file:
        names = list(file.keys())
        return {name: file.get_tensor(name) if name in NAMES else None for name in names}


def _reason(error: Exception) -> str:
    text = str(error).replace("\n", " ")
    if "allow_pickle" in text or "pickle" in text:
        return "it holds pickled objects, which could run code; only plain arrays are read"
    return text or type(error).__name__
