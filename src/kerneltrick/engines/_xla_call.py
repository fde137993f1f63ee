"""Calls of the core by XLA (`native/ffi.cpp`): whether they are possible, and how they are written.

XLA is given a call before there are arrays. The functions that describe a call to the core run on
NumPy arrays in their place, which nobody reads or writes; then each address in the call is replaced
by the buffer of XLA's that will be there. So a call has one description for all libraries.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from kerneltrick.engines._core_call import (
    OPERATORS,
    CoreCall,
    NumpyArray,
    address,
    core,
    interface,
    layout,
    missing_core,
)

TARGET = "kerneltrick"  # the name of the handler
OLDEST = (0, 5)  # of JAX
VERSIONS = ((0, 1), (0, 2), (0, 3))  # of XLA's interface that take a handler of version 0.1
# XLA's numbers of types.
ELEMENTS = {
    "bool": 1,
    "int32": 4,
    "int64": 5,
    "uint32": 8,
    "float16": 10,
    "float32": 11,
    "float64": 12,
    "bfloat16": 16,
}
REST = "_rest"  # ends the name of the second part of a float64 that JAX holds as two float32


def unavailable() -> str:
    """Why JAX's arrays do not reach the core; empty if they do."""
    if core() is None:
        return f"there is no compiled core: {missing_core()}"
    if "jax" not in sys.modules:
        return "JAX is not loaded"
    return _registered()


@functools.cache
def _registered() -> str:
    """Register the handler, unless XLA might not take it: its CPU backend would then not start."""
    jax = sys.modules["jax"]
    if not hasattr(core(), "xla_handler"):
        return "the core was compiled without it; compile it again (`make native`)"
    if tuple(jax.__version_info__[:2]) < OLDEST:
        return f"JAX {jax.__version__} is older than {'.'.join(map(str, OLDEST))}"
    ffi = importlib.import_module("jax.ffi")
    path = os.path.join(ffi.include_dir(), "xla", "ffi", "api", "c_api.h")
    try:
        with open(path, encoding="utf-8") as file:
            text = file.read()
    except OSError as error:
        return f"the version of XLA's interface is unknown: {error}"
    found = tuple(map(int, re.findall(r"#define XLA_FFI_API_(?:MAJOR|MINOR) (\d+)", text)))
    if found not in VERSIONS:
        known = ", ".join(f"{major}.{minor}" for major, minor in VERSIONS)
        shown = ".".join(map(str, found))
        return f"JAX {jax.__version__} has version {shown} of XLA's interface, not one of {known}"
    ffi.register_ffi_target(TARGET, core().xla_handler(), platform="cpu")
    return ""


class ArrayShape(NamedTuple):
    """An array of JAX's without its values."""

    shape: tuple[int, ...]
    dtype: str


class CallForm(NamedTuple):
    """All about a call but the shapes of its arrays."""

    operator: str
    backward: bool
    names: tuple[str, ...]  # of the arguments
    rule: str
    gradient: bool  # whether a gradient may follow
    heads: tuple[int, int] = (0, 0)  # of the weights: of queries (0: drawn), and of keys


class XlaCall(NamedTuple):
    """What XLA is told of a call: the attribute of its handler, and the results by name."""

    attribute: tuple[int, ...]
    results: dict[str, ArrayShape]


class _Memory(NamedTuple):
    stand_in: NumpyArray
    sources: tuple[int, ...]  # the arguments that hold it, two for a pair
    targets: tuple[int, ...]  # the results


# Writes the call of a form on stand-ins by name; also gives the arrays that the core makes.
Describe = Callable[[CallForm, dict[str, NumpyArray], str], tuple[CoreCall, dict[str, Any]]]


def xla_call(
    describe: Describe, form: CallForm, arguments: tuple[ArrayShape, ...], wide: dict[str, str]
) -> XlaCall:
    """The call of a form on arguments of these shapes; `wide` has the types the core reads."""
    index = {name: at for at, name in enumerate(form.names)}
    shapes = dict(zip(form.names, arguments, strict=True))
    arrays = {
        name: _stand_in(x, wide.get(name))
        for name, x in shapes.items()
        if name != "start" and not name.endswith(REST)
    }
    call, made = describe(form, arrays, shapes["q"].dtype)
    memories = [_Memory(x, _pair(name, index), ()) for name, x in arrays.items()]
    results: dict[str, ArrayShape] = {}
    for name, x in made.items():
        if x is None:
            continue
        for part in (name, name + REST):
            if part == name or (part in index and not form.backward):
                results[part] = _result(name, x, shapes)
        places = {part: at for at, part in enumerate(results)}
        before = f"d_{name}" if form.backward else name
        memories.append(_Memory(x, _pair(before, index), _pair(name, places)))
    numbers = [(layout(form.operator).slots["start"], index["start"])] if "start" in index else []
    attribute = [
        interface(),
        OPERATORS.index(form.operator),
        int(form.backward),
        len(arguments),
        len(results),
    ]
    for x in (*arguments, *results.values()):
        attribute += [ELEMENTS[x.dtype], len(x.shape), *x.shape]
    attribute += _record(call, form.backward, memories, numbers)
    return XlaCall(tuple(map(int, attribute)), results)


def _stand_in(x: ArrayShape, wide: str | None) -> NumpyArray:
    if x.dtype == "uint32":  # the bits of float64
        return np.empty(x.shape[:-1], np.float64)
    return np.empty(x.shape, wide or ("int16" if x.dtype == "bfloat16" else x.dtype))


def _result(name: str, x: NumpyArray, given: dict[str, ArrayShape]) -> ArrayShape:
    """How JAX sees an array that the core makes: it may lack float64 and int64."""
    dtype = x.dtype.name
    if name == "saved":
        return ArrayShape((*x.shape, 2), "uint32")
    if dtype == "int16":
        dtype = "bfloat16"
    elif dtype == "int64":
        dtype = given["near_count"].dtype
    elif dtype == "float64" and name in given:
        dtype = given[name].dtype
    elif dtype == "float64" and given["q"].dtype != "float64":
        dtype = "float32"
    return ArrayShape(x.shape, dtype)


def _pair(name: str, places: dict[str, int]) -> tuple[int, ...]:
    return tuple(places[part] for part in (name, name + REST) if part in places)


def _record(
    call: CoreCall, backward: bool, memories: list[_Memory], numbers: list[tuple[int, int]]
) -> list[int]:
    """The sections of the attribute behind the buffers; native/ffi.cpp says what they are."""
    record = np.frombuffer(call.packed(backward), np.int64).copy()
    slots, places = layout(call.operator), [address(x.stand_in) for x in memories]
    used: list[int] = []  # what the core is given of the memories
    pointers: list[int] = []
    for slot in slots.addresses:
        if slot >= len(record) or record[slot] == 0:
            continue
        where, record[slot] = int(record[slot]), 0
        for at, (first, x) in enumerate(zip(places, memories, strict=True)):
            if first <= where < first + x.stand_in.nbytes:
                used += [] if at in used else [at]
                pointers += [slot, used.index(at), where - first]
                break
        else:
            if where not in places:  # of an array without entries
                raise RuntimeError(f"slot {slot} of a call of {call.operator} is no array of JAX's")
    found = [len(used)]
    for x in (memories[at] for at in used):
        element = "bfloat16" if x.stand_in.dtype == np.int16 else x.stand_in.dtype.name
        sources, targets = ((*part, -1, -1)[:2] for part in (x.sources, x.targets))
        cleared = not isinstance(
            x.stand_in.base, core().Block
        )  # `aligned` ones begin with anything
        found += [ELEMENTS[element], *sources, *targets, int(cleared)]
    rows = {address(x): x for x in call.offsets}
    offsets = []
    for slot in slots.offsets:
        if slot < len(record) and record[slot]:
            values = rows[int(record[slot])].ravel().tolist()
            offsets.append([slot, len(values), *values])
            record[slot] = 0
    found += [len(pointers) // 3, *pointers]
    found += [len(numbers), *(x for pair in numbers for x in pair)]
    found += [len(offsets), *(x for part in offsets for x in part)]
    return [*found, len(record), *record.tolist()]
