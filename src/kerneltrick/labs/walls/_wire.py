"""What travels between the grader and the student's process: JSON and the bytes of arrays.

Nothing is ever executed to read a message, and a forged one is at most a wrong answer. This module
runs in both processes and uses the standard library and NumPy only.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

LARGEST = 64 * 2**20  # bytes of a message
LARGEST_HEAD = 4 * 2**20  # bytes of its JSON, which takes many times as much memory when read
MOST_PARTS = 100_000  # of a list
MOST_KEYS = 1000  # of a dict: many more can be made to collide
DEEPEST = 16  # lists in lists
LONGEST = 10_000  # characters of a text
LONGEST_NUMBER = 1000  # bits of a whole number: all of them fit a float
HEAD = struct.Struct(">II")
KINDS = "biufc"  # of the dtypes that travel: numbers and truth values

Array = np.ndarray[Any, Any]


class Unreadable(Exception):
    """A message that is not one of ours."""


class Other:
    """In an answer: an object that does not travel, by the name of its type."""

    def __init__(self, name: str) -> None:
        self.name = name


@dataclass(frozen=True)
class Given:
    """In the arguments: a function that both processes have, by its name."""

    name: str


def pack(fields: dict[str, Any], **values: Any) -> bytes:
    """A message: `fields` as JSON, and `values`, trees of arrays and numbers.

    A tree that is too large or cannot be walked travels as the name of its type.

    >>> fields, values = unpack(pack({"call": "f"}, arguments=(np.arange(3.0), [True, None])))
    >>> fields["call"], values["arguments"]
    ('f', (array([0., 1., 2.]), [True, None]))
    """
    body = bytearray()
    try:
        trees = {name: _encode(value, body, 0) for name, value in values.items()}
        head = json.dumps({"fields": fields, "values": trees}).encode()
    except Exception:  # a student's class may raise anything
        head = b""
    if not 0 < len(head) <= LARGEST_HEAD:
        trees = {name: ["other", type(value).__name__[:100]] for name, value in values.items()}
        head = json.dumps({"fields": fields, "values": trees}).encode()
        body.clear()
    return HEAD.pack(len(head), len(body)) + head + body


def size(start: bytes | bytearray) -> int | None:
    """How many bytes the message that begins so has, as soon as that is known."""
    if len(start) < HEAD.size:
        return None
    head, body = HEAD.unpack(start[: HEAD.size])
    total = HEAD.size + int(head) + int(body)
    if total > LARGEST or head > LARGEST_HEAD:
        raise Unreadable(f"a message of {total:,} bytes")
    return total


def unpack(message: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """What was packed; `Unreadable` for anything else."""
    try:
        length = HEAD.unpack(message[: HEAD.size])[0]
        found = json.loads(message[HEAD.size : HEAD.size + length])
        reader = _WireReader(message[HEAD.size + length :])
        values = {str(name): reader.read(tree, 0) for name, tree in found["values"].items()}
        return dict(found["fields"]), values
    except Exception as error:  # a forged message may break the reading anywhere
        raise Unreadable(f"{type(error).__name__} in reading a message") from None


def _encode(x: Any, body: bytearray, depth: int) -> Any:
    if x is None or x is True or x is False:
        return ["value", x]
    if isinstance(x, np.ndarray):
        return _encode_array("array", np.asarray(x), body)
    if isinstance(x, np.generic):  # before float: np.float64 is one
        return _encode_array("scalar", np.asarray(x), body)
    if isinstance(x, str) and len(x) <= LONGEST:
        return ["value", str(x)]
    if isinstance(x, int) and x.bit_length() <= LONGEST_NUMBER:
        return ["value", int(x)]
    if isinstance(x, float):
        return ["value", float(x)]
    if isinstance(x, complex):
        return ["complex", x.real, x.imag]
    if isinstance(x, Given):
        return ["name", x.name]
    if isinstance(x, (list, tuple)) and depth < DEEPEST and len(x) <= MOST_PARTS:
        kind = "list" if isinstance(x, list) else "tuple"
        return [kind, [_encode(part, body, depth + 1) for part in x]]
    if isinstance(x, dict) and depth < DEEPEST and len(x) <= MOST_KEYS:
        pairs = [[_encode(k, body, depth + 1), _encode(v, body, depth + 1)] for k, v in x.items()]
        return ["dict", pairs]
    return ["other", type(x).__name__[:100]]


def _encode_array(kind: str, x: Array, body: bytearray) -> Any:
    if x.dtype.kind not in KINDS:
        return ["other", f"array of {x.dtype}"[:100]]
    start = len(body)
    if start + x.nbytes > LARGEST - LARGEST_HEAD:
        return ["other", f"array of {x.nbytes / 1e6:.0f} MB"]
    body += x.tobytes()
    return [kind, x.dtype.str, list(x.shape), start]


class _WireReader:
    def __init__(self, body: bytes) -> None:
        self.body = body
        self.left = len(body)  # arrays that share bytes would be larger than the message

    def read(self, tree: Any, depth: int) -> Any:
        if depth > DEEPEST + 1:
            raise Unreadable("too deep")
        kind, rest = tree[0], tree[1:]
        read: dict[str, Callable[[], Any]] = {
            "value": lambda: self._value(rest[0]),
            "complex": lambda: complex(float(rest[0]), float(rest[1])),
            "name": lambda: Given(str(rest[0])),
            "other": lambda: Other(str(rest[0])[:100]),
            "array": lambda: self._array(*rest),
            "scalar": lambda: self._array(*rest)[()],
            "list": lambda: [self.read(part, depth + 1) for part in rest[0]],
            "tuple": lambda: tuple(self.read(part, depth + 1) for part in rest[0]),
            "dict": lambda: self._dict(rest[0], depth),
        }
        return read[kind]()

    def _dict(self, pairs: Any, depth: int) -> dict[Any, Any]:
        if len(pairs) > MOST_KEYS:
            raise Unreadable("too many keys")
        return {self.read(k, depth + 1): self.read(v, depth + 1) for k, v in pairs}

    def _value(self, x: Any) -> Any:
        if x is not None and not isinstance(x, (bool, int, float, str)):
            raise Unreadable("not a plain value")
        if isinstance(x, int) and x.bit_length() > LONGEST_NUMBER:
            raise Unreadable("a number too long")
        return x

    def _array(self, name: str, shape: list[int], start: int) -> Array:
        dtype = np.dtype(str(name))
        if dtype.kind not in KINDS or any(type(n) is not int or n < 0 for n in shape):
            raise Unreadable("not an array of numbers")
        count = math.prod(shape)
        self.left -= count * dtype.itemsize
        outside = type(start) is not int or start < 0
        if outside or start + count * dtype.itemsize > len(self.body) or self.left < 0:
            raise Unreadable("an array beyond the message")
        flat = np.frombuffer(self.body, dtype, count, start) if count else np.empty(0, dtype)
        return flat.reshape(shape).copy()
