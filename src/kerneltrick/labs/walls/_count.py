"""Count the operations of a call, which say how its time grows, on any machine and at any load.

Counted are the lines of the student's file that run, and the operations of NumPy: its arrays are
replaced by some that count. Moving data counts nothing.
"""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, ClassVar

import numpy as np

Array = np.ndarray[Any, Any]

_MAKERS = (
    *("array", "asarray", "ascontiguousarray", "asfortranarray", "fromiter", "zeros", "ones"),
    *("empty", "full", "arange", "linspace", "eye", "identity", "tri"),
)
_PRODUCTS = (np.dot, np.inner, np.vdot, np.tensordot, np.outer)


class TooMany(BaseException):
    """The call takes more operations than the counter allows; no `except Exception` stops it."""


class OperationCounter:
    """Counts operations, up to `most` of them; 0 sets no limit."""

    def __init__(self, filename: str, most: int) -> None:
        self.filename, self.most = filename, most
        self.operations = 0

    def add(self, operations: int) -> None:
        self.operations += operations
        if 0 < self.most < self.operations:
            raise TooMany(f"more than {self.most} operations")

    def call(self, function: Callable[..., Any], arguments: Any, options: Any) -> None:
        """Call a function and count what it does; what it returns is left to other calls."""
        before = sys.gettrace()
        with _counting_arrays(self):
            arguments, options = _counted(arguments), _counted(options)
            sys.settrace(self._enter)
            try:
                function(*arguments, **options)
            finally:
                sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, value: Any) -> Any:
        return self._line if frame.f_code.co_filename == self.filename else None

    def _line(self, frame: FrameType, event: str, value: Any) -> Any:
        if event == "line":  # each turn of a comprehension is one too
            self.add(1)
        return self._line


@contextlib.contextmanager
def _counting_arrays(counter: OperationCounter) -> Iterator[None]:
    """Let the functions of NumPy that make arrays make such as count."""

    def counting(make: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments, **options: _counted(make(*arguments, **options))

    makers = {name: getattr(np, name) for name in _MAKERS}
    _Counted.counter = counter
    for name, make in makers.items():
        setattr(np, name, counting(make))
    try:
        yield
    finally:
        for name, make in makers.items():
            setattr(np, name, make)


def _counted(tree: Any) -> Any:
    """The arrays of a tree as such that count."""
    if type(tree) is np.ndarray:
        return tree.view(_Counted)
    if type(tree) in (list, tuple):
        return type(tree)(map(_counted, tree))
    if type(tree) is dict:
        return {key: _counted(value) for key, value in tree.items()}
    return tree


def _plain(tree: Any) -> Any:
    if isinstance(tree, _Counted):
        return tree.view(np.ndarray)
    if type(tree) in (list, tuple):
        return type(tree)(map(_plain, tree))
    return tree


class _Counted(np.ndarray[Any, Any]):
    counter: ClassVar[OperationCounter]

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: Any, *inputs: Any, out: Any = (), **options: Any
    ) -> Any:
        inputs = tuple(map(_plain, inputs))
        options = {name: _plain(value) for name, value in options.items()}
        if out:
            options["out"] = tuple(map(_plain, out))
        result = getattr(ufunc, method)(*inputs, **options)
        if method == "at":
            operations = np.size(inputs[1])
        elif ufunc.signature is not None:  # a product of matrices or vectors
            operations = np.size(result) * np.shape(inputs[0])[-1]
        else:
            operations = max(np.size(x) for x in (*inputs, result) if isinstance(x, np.ndarray))
        self.counter.add(operations)
        if out:
            return out[0] if len(out) == 1 else out
        return _counted(result)

    def __array_function__(self, function: Any, types: Any, inputs: Any, options: Any) -> Any:
        result = super().__array_function__(function, types, inputs, options)
        self.counter.add(_operations(function, inputs, options, result))
        return _counted(result)

    def dot(self, other: Any, out: Any = None) -> Any:  # the method of an array asks nobody
        return np.dot(self, other, out)


def _operations(function: Any, inputs: Any, options: Any, result: Any) -> int:
    """The multiplications of a product or a solution; others end in ufuncs, which count."""
    if function in _PRODUCTS:  # (i, k) times (k, j) is i·k·j, the root of all three sizes
        return math.isqrt(math.prod(np.size(x) for x in (*inputs[:2], result)))
    if function is np.einsum:
        _, about = np.einsum_path(*_plain(inputs), optimize=options.get("optimize", False))
        found = re.search(r"Optimized FLOP count:\s*(\S+)", str(about))
        return int(float(found[1])) if found else 0
    matrix = isinstance(inputs[0], np.ndarray) and inputs[0].ndim > 1
    if matrix and function.__module__ == "numpy.linalg":
        return int(inputs[0].size * min(inputs[0].shape[-2:]))
    return 0
