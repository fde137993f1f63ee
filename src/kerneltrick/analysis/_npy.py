"""Read arrays from untrusted .npy and .npz files.

Sizes are checked against each other and against the file before memory is allocated, members are
decompressed piece by piece into their array, and pickles are never opened.
"""

from __future__ import annotations

import ast
import io
import math
import os
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[Any]
Read: TypeAlias = Callable[[int], bytes]

PIECE = 1 << 20  # bytes read at a time
NPY_HEADER = 1 << 14
ZIP_DIRECTORY = 1 << 20  # enough for 20,000 members; Python needs ten times as much to read it
AXES = 8
EXPANSION = 100  # largest compression ratio; real numbers compress by less than 2
SMALL = 1 << 26  # up to so many bytes, any ratio is allowed: zeros of a toy example

_FLOATS = "float16, float32 or float64"


class FormatError(ValueError):
    """The file is malformed; the message says what was expected and what was found."""


def read_npy(path: Path) -> Numbers:
    """Read the array of a `.npy` file."""
    with path.open("rb") as file:
        dtype, shape, fortran, start = _npy_header(path.stem, file.read)
        size = _size(dtype, shape)
        actual = os.fstat(file.fileno()).st_size - start
        if size != actual:
            raise FormatError(
                f"it declares {shape} of {dtype.name}, {size:,} bytes, but {actual:,} follow"
            )
        return _read_array(file.read, dtype, shape, fortran)


def read_npz(path: Path, wanted: tuple[str, ...]) -> tuple[dict[str, Numbers], list[str]]:
    """Read the wanted arrays of an archive; return them and the names of all members."""
    with _plainly(), _Cautious(path) as file, zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        names = [member.filename.removesuffix(".npy") for member in members]
        chosen = [member for member in members if member.filename in {f"{w}.npy" for w in wanted}]
        for member in chosen:
            if sum(other.filename == member.filename for other in members) > 1:
                raise FormatError(f"it contains {member.filename} more than once")
            _check_member(member)
        total, packed = sum(m.file_size for m in chosen), sum(m.compress_size for m in chosen)
        if total > max(SMALL, EXPANSION * packed):
            raise FormatError(
                f"{packed:,} bytes would expand to {total:,}, more than {EXPANSION} times as many; "
                "real data does not compress that well"
            )
        arrays = {}
        for member in chosen:
            name = member.filename.removesuffix(".npy")
            with archive.open(member) as stream:
                arrays[name] = _member_array(name, member, stream.read)
        return arrays, names


def _check_member(member: zipfile.ZipInfo) -> None:
    name, size, packed = member.filename, member.file_size, member.compress_size
    if member.flag_bits & 1:
        raise FormatError(f"{name} is encrypted; expected a plain archive")
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise FormatError(
            f"{name} is compressed with method {member.compress_type}; expected deflate"
        )
    # A stored block of deflate adds 5 bytes to at most 65,535; more cannot be this array.
    most = size if member.compress_type == zipfile.ZIP_STORED else size + size // 1000 + 1024
    if packed > most:
        raise FormatError(f"{name} declares {size:,} bytes but {packed:,} compressed ones hold it")


def _member_array(name: str, member: zipfile.ZipInfo, read: Read) -> Numbers:
    dtype, shape, fortran, start = _npy_header(name, read)
    size = _size(dtype, shape)
    if start + size != member.file_size:
        raise FormatError(
            f"{name} declares {shape} of {dtype.name}, {size:,} bytes, but the archive declares "
            f"{member.file_size - start:,}"
        )
    return _read_array(read, dtype, shape, fortran)


def _npy_header(name: str, read: Read) -> tuple[np.dtype[Any], tuple[int, ...], bool, int]:
    """Return dtype, shape, whether the order is Fortran's, and the bytes before the numbers."""
    head = exactly(read, 8, f"{name}: the start of an array")
    if head[:6] != b"\x93NUMPY" or head[6] not in (1, 2, 3):
        raise FormatError(f"{name} is not a NumPy array; it starts with {head!r}")
    width = 2 if head[6] == 1 else 4
    length = int.from_bytes(exactly(read, width, f"{name}: its header"), "little")
    if length > NPY_HEADER:
        raise FormatError(f"{name} declares a header of {length:,} bytes; at most {NPY_HEADER:,}")
    text = exactly(read, length, f"{name}: its header")
    try:
        header = ast.literal_eval(text.decode("utf-8" if head[6] == 3 else "latin1").strip())
        descr, fortran, shape = (header[key] for key in ("descr", "fortran_order", "shape"))
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError):
        raise FormatError(f"{name} has a header that is not NumPy's") from None
    if type(fortran) is not bool or type(shape) is not tuple:
        raise FormatError(f"{name} has a header that is not NumPy's")
    if len(shape) > AXES or any(type(x) is not int or x < 0 for x in shape):
        raise FormatError(f"{name} declares the shape {shape}")
    return _npy_dtype(name, descr), shape, fortran, 8 + width + length


def _npy_dtype(name: str, descr: Any) -> np.dtype[Any]:
    if isinstance(descr, str) and re.fullmatch(r"[<>=|]?f[248]", descr):
        return np.dtype(descr)
    if isinstance(descr, str) and "O" in descr:
        raise FormatError(
            f"{name} contains pickled objects, which could run code; only plain arrays are read"
        )
    found = str(descr)[:40]
    if isinstance(descr, str) and re.fullmatch(r"[<>=|]?[biuc]\d{1,2}", descr):
        found = np.dtype(descr).name
    raise FormatError(f"{name} has dtype {found}; expected {_FLOATS}")


def _size(dtype: np.dtype[Any], shape: tuple[int, ...]) -> int:
    return math.prod(shape) * dtype.itemsize


def _read_array(read: Read, dtype: np.dtype[Any], shape: tuple[int, ...], fortran: bool) -> Numbers:
    array = np.empty(shape[::-1] if fortran else shape, dtype)
    fill(read, array)
    if read(1):
        raise FormatError("there are more bytes than its header declares")
    array = native(array)
    return np.ascontiguousarray(array.T) if fortran else array


def fill(read: Read, out: Numbers) -> None:
    target = out.reshape(-1).view(np.uint8)
    place = 0
    while place < len(target):
        piece = _some(read, len(target) - place, place, len(target))
        target[place : place + len(piece)] = np.frombuffer(piece, np.uint8)
        place += len(piece)


def _some(read: Read, wanted: int, place: int, total: int) -> bytes:
    piece = read(min(PIECE, wanted))
    if not piece:
        raise FormatError(f"it ends after {place:,} of {total:,} bytes of an array")
    return piece


def exactly(read: Read, count: int, what: str) -> bytes:
    data = read(count)
    if len(data) != count:
        raise FormatError(f"it ends within {what}")
    return data


def native(array: Numbers) -> Numbers:
    if array.dtype.isnative:
        return array
    return array.byteswap(inplace=True).view(array.dtype.newbyteorder("="))


class _Cautious(io.FileIO):
    """A file for `zipfile` that refuses to read a huge central directory at once."""

    def read(self, size: int | None = -1, /) -> bytes:
        left = os.fstat(self.fileno()).st_size - self.tell()
        wanted = left if size is None or size < 0 else size
        if min(wanted, left) > ZIP_DIRECTORY:
            raise FormatError(f"its directory of members has {wanted:,} bytes")
        return super().read(wanted) or b""

    def seek(self, place: int, whence: int = 0, /) -> int:
        if whence == 0 and place < 0:
            raise FormatError("its archive describes bytes before its start")
        return super().seek(place, whence)


@contextmanager
def _plainly() -> Iterator[None]:
    try:
        yield
    except FormatError:
        raise
    except (zipfile.BadZipFile, zlib.error, EOFError, struct.error, OverflowError) as error:
        raise FormatError(str(error) or "it is not a whole archive") from None
    except (NotImplementedError, RuntimeError, UnicodeDecodeError, ValueError) as error:
        raise FormatError(f"its archive is not a plain one: {error}") from None
