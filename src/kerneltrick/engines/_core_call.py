"""A call of the compiled core: the fields of a list in `calls/`, and the arrays they point into.

Each operator has one list of fields, of which native/core.h and native/operators.h make structs.
This file reads the lists to know where each field goes, and which checksum a core compiled from the
same lists has.
"""

from __future__ import annotations

import functools
import importlib
import math
import os
import re
import struct
import warnings
import zlib
from typing import Any, NamedTuple

import numpy as np

NumpyArray = np.ndarray[Any, Any]

# As in native/operators.h.
OPERATORS = ("attention", "delta_rule", "short_convolution", "selective_scan")
LINE = 64  # bytes of a cache line
VIEW = ("data", "offset", "token", "element")  # the parts of a View, in order


class Layout(NamedTuple):
    """What the list of an operator says."""

    types: dict[str, int]  # the number of each way to store numbers
    maps: dict[str, int]  # the number of each fused map
    slots: dict[str, int]  # where a field begins; a View takes four slots
    floats: frozenset[str]  # the fields that are no whole numbers
    forward: struct.Struct  # packs the slots of a forward pass
    backward: struct.Struct  # packs those and the slots of the gradient
    words: str  # the list without its remarks
    addresses: tuple[int, ...]  # the slots that hold the address of an array
    offsets: tuple[int, ...]  # those that hold the address of the offsets of a View's rows


@functools.cache
def layout(operator: str = "attention") -> Layout:
    path = os.path.join(os.path.dirname(__file__), "calls", f"{operator}.def")
    with open(path, encoding="utf-8") as file:
        return read_layout(file.read())


@functools.cache
def interface() -> int:
    """The checksum of the lists, which a core compiled from the same lists has too."""
    return zlib.crc32("".join(f"operator {x};{layout(x).words}" for x in OPERATORS).encode())


def read_layout(text: str) -> Layout:
    """The layout of a call from the text of its list."""
    types: dict[str, int] = {}
    maps: dict[str, int] = {}
    slots: dict[str, int] = {}
    floats: set[str] = set()
    formats, words, count = {"FIELD": "", "GRADIENT": ""}, [], 0
    addresses, offsets = [], []
    for kind, inside in re.findall(r"^KT_(\w+)\((.*?)\)", text, re.MULTILINE):
        parts = [" ".join(part.split()) for part in inside.split(",")]
        words.append(" ".join([kind.lower(), *parts]) + ";")
        if kind in ("TYPE", "MAP"):
            found = types if kind == "TYPE" else maps
            found[parts[0]] = len(found)
            continue
        form = {"View": "q" * len(VIEW), "double": "d"}.get(parts[0], "q")
        slots[parts[1]] = count
        if parts[0] == "View" or parts[0].endswith("*"):
            addresses.append(count)
        if parts[0] == "View":
            offsets.append(count + VIEW.index("offset"))
        if form == "d":
            floats.add(parts[1])
        count += len(form)
        formats["GRADIENT" if kind == "GRADIENT" else "FIELD"] += form
    whole = formats["FIELD"] + formats["GRADIENT"]
    return Layout(
        types,
        maps,
        slots,
        frozenset(floats),
        struct.Struct("=" + formats["FIELD"]),
        struct.Struct("=" + whole),
        "".join(words),
        tuple(addresses),
        tuple(offsets),
    )


@functools.cache
def core() -> Any:
    """The compiled module, loaded when first needed; None where there is none for this version."""
    return _loaded()[0]


def missing_core() -> str:
    """Why there is no core, and what to do."""
    return _loaded()[1]


@functools.cache
def _loaded() -> tuple[Any, str]:
    try:
        module = importlib.import_module("kerneltrick._core")
    except ModuleNotFoundError:
        return None, "no compiler worked at installation"
    except ImportError as error:
        return None, f"it cannot be loaded: {error}"
    found, needed = getattr(module, "INTERFACE", None), interface()
    if found == needed:
        return module, ""
    was = "none" if found is None else f"{found:#010x}"
    reason = (
        f"{module.__file__} was compiled from other sources: its interface is {was}, and this "
        f"version of kerneltrick needs {needed:#010x}; compile it again (`make native`, or "
        f"install kerneltrick again)"
    )
    warnings.warn(f"the compiled core is not used: {reason}", RuntimeWarning, stacklevel=2)
    return None, reason


def check_isa() -> None:
    """ValueError if KERNELTRICK_ISA asks for an instruction set that is not there."""
    asked = core().asked_isa()
    if asked and asked not in core().isas():
        raise ValueError(
            f"KERNELTRICK_ISA is {asked!r}; this machine and build have {', '.join(core().isas())}"
        )


@functools.cache
def _defaults(operator: str) -> bytes:
    return layout(operator).backward.pack(*getattr(core(), f"{operator}_defaults")())


_WHOLE, _FLOAT, _VIEW = struct.Struct("=q"), struct.Struct("=d"), struct.Struct(f"={len(VIEW)}q")


class CoreCall:
    """The numbers and addresses of one call, by the names of the operator's list.

    The call keeps the arrays alive that its addresses point into: the memory of its arrays, and
    where their rows begin.
    """

    __slots__ = ("_layout", "_record", "_slots", "alive", "offsets", "operator")

    def __init__(
        self, like: CoreCall | None = None, *, operator: str = "attention", **numbers: Any
    ) -> None:
        """A call with the defaults of its fields, or those of another call, and these numbers."""
        if like is None:
            self.operator, self._layout = operator, layout(operator)
            self._record = bytearray(_defaults(operator))
            self.alive: list[Any] = []
            self.offsets: list[Any] = []
        else:
            self.operator, self._layout = like.operator, like._layout
            self._record, self.alive = like._record[:], like.alive[:]
            self.offsets = like.offsets[:]
        self._slots = self._layout.slots
        for name, value in numbers.items():
            self[name] = value

    def __getitem__(self, name: str) -> Any:
        form = _FLOAT if name in self._layout.floats else _WHOLE
        return form.unpack_from(self._record, 8 * self._slots[name])[0]

    def __setitem__(self, name: str, value: Any) -> None:
        form = _FLOAT if name in self._layout.floats else _WHOLE
        form.pack_into(self._record, 8 * self._slots[name], value)

    def view(self, name: str, x: NumpyArray, lead: tuple[int, ...]) -> None:
        """Give x (..., n, w), broadcast to the leading indices `lead`, whatever its strides."""
        if x.shape[:-2] != lead:
            x = np.broadcast_to(x, (*lead, *x.shape[-2:]))
        self.lay_out(name, lead, x.strides)
        self.place(name, x)

    def lay_out(self, name: str, lead: tuple[int, ...], strides: tuple[int, ...]) -> None:
        """Say where the entries of an array will lie that `place` gives."""
        *leading, token, element = strides
        offsets, where = _offsets(lead, tuple(leading))
        self.offsets.append(offsets)
        _VIEW.pack_into(self._record, 8 * self._slots[name], 0, where, token, element)

    def place(self, name: str, x: NumpyArray) -> None:
        """Give the memory of an array that is laid out already."""
        self.alive.append(x)
        _WHOLE.pack_into(self._record, 8 * self._slots[name], core().address(x))

    def array(self, name: str, x: NumpyArray | None) -> NumpyArray | None:
        """Give x as one contiguous piece of memory, which is returned."""
        if x is not None:
            x = np.ascontiguousarray(x)
            self.place(name, x)
        return x

    def forward(self) -> None:
        getattr(core(), f"{self.operator}_forward")(self.packed())

    def backward(self) -> None:
        getattr(core(), f"{self.operator}_backward")(self.packed(gradient=True))

    def packed(self, gradient: bool = False) -> bytes:
        """The call as the core reads it, with its gradient or without."""
        return bytes(self._record if gradient else self._record[: self._layout.forward.size])

    def field(self, name: str) -> int:
        """The place of a field, or of the address of an array, among the numbers of `packed`."""
        return self._slots[name]


@functools.lru_cache(maxsize=256)
def _offsets(lead: tuple[int, ...], strides: tuple[int, ...]) -> tuple[NumpyArray, int]:
    """Where each of the leading indices begins, in bytes, and the address of that."""
    found = np.zeros(lead, dtype=np.int64)
    for axis, (size, stride) in enumerate(zip(lead, strides, strict=True)):
        shape = [1] * len(lead)
        shape[axis] = size
        found += np.arange(size, dtype=np.int64).reshape(shape) * stride
    return found, address(found)


def address(x: NumpyArray) -> int:
    """Where the memory of an array begins."""
    found: int = core().address(x)
    return found


def aligned(shape: tuple[int, ...], dtype: Any) -> NumpyArray:
    """An empty array that begins on a cache line, if large in memory that was in use before."""
    dtype = np.dtype(dtype)
    return np.ndarray(shape, dtype, core().Block(math.prod(shape) * dtype.itemsize))


def in_lines(x: NumpyArray) -> NumpyArray:
    """A copy of x (..., w) each of whose rows begins on a cache line, where there is a core."""
    if core() is None or x.size == 0:
        return x.copy()
    line = LINE // x.dtype.itemsize
    rows = aligned((*x.shape[:-1], -(-x.shape[-1] // line) * line), x.dtype)
    rows[..., : x.shape[-1]] = x
    rows[..., x.shape[-1] :] = 0
    return rows[..., : x.shape[-1]]
