"""Functions whose Python code torch.compile leaves alone, and the values that it sees into.

PyTorch would translate our checks line by line, and our loops once for each turn. It runs such a
function as it is instead, on tensors without values, and keeps the operators that come out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, ParamSpec, TypeVar

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")
Class = TypeVar("Class", bound=type)

FUNCTIONS: dict[str, Callable[..., Any]] = {}
TREES: dict[type, tuple[str, ...]] = {}
CLASSES: dict[str, type] = {}  # PyTorch makes objects only of classes that it knows from where
CONSTANTS = (bool, float, str, type(None))
_RUNNING = threading.local()  # whether this thread runs a function for torch.compile


def without_values() -> bool:
    """Whether a function runs for torch.compile, which needs the same text with and without values.

    PyTorch runs it on tensors without values first, and some backends again on real ones.
    """
    return getattr(_RUNNING, "depth", 0) > 0


@contextlib.contextmanager
def for_compiled_code() -> Iterator[None]:
    _RUNNING.depth = getattr(_RUNNING, "depth", 0) + 1
    try:
        yield
    finally:
        _RUNNING.depth -= 1


def tree(cls: Class) -> Class:
    """A dataclass whose fields PyTorch may take apart, to find the tensors and numbers in it."""
    register_tree(cls, tuple(field.name for field in dataclasses.fields(cls)))
    return cls


def register_tree(cls: type, names: tuple[str, ...]) -> None:
    """The same for any class that is made from its attributes of these names."""
    TREES[cls] = names
    CLASSES[cls.__name__] = cls


def untranslated(function: Callable[Inputs, Output]) -> Callable[Inputs, Output]:
    """A function of tensors, numbers, texts and trees that torch.compile is not to translate."""
    name = f"{function.__module__}.{function.__qualname__}"
    FUNCTIONS[name] = function

    @functools.wraps(function)
    def call(*inputs: Inputs.args, **options: Inputs.kwargs) -> Output:
        if translating():
            from kerneltrick._arrays import _compiled

            found: Output = _compiled.call(name, (inputs, options))
            return found
        return function(*inputs, **options)

    return call


def translating() -> bool:
    """Whether this very code is being translated by torch.compile."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_dynamo_compiling()


def taken_apart(value: Any, leaves: list[Any]) -> Any:
    """What is left of a value without its tensors and whole numbers, which go into `leaves`."""
    kind = type(value)
    if kind in CONSTANTS:
        return value
    if kind is dict:
        return dict, tuple(value), [taken_apart(x, leaves) for x in value.values()]
    if kind in TREES:
        parts = [taken_apart(getattr(value, name), leaves) for name in TREES[kind]]
        return kind.__name__, (), parts
    if isinstance(value, (tuple, list)):
        return kind, (), [taken_apart(x, leaves) for x in value]
    if callable(value):
        raise TypeError(
            "torch.compile sees into maps of kerneltrick.maps and into the torch.nn.Module that is "
            "the map of a layer, not into other functions and classes; apply the function to q and "
            "k yourself, with feature_map='identity'"
        )
    leaves.append(value)
    return ()


def put_together(rest: Any, leaves: list[Any]) -> Any:
    """The value again; leaves are taken from the end."""
    if rest == ():
        return leaves.pop()
    if type(rest) is not tuple:
        return rest
    kind, keys, parts = rest
    parts = [put_together(part, leaves) for part in parts[::-1]][::-1]
    if kind is dict:
        return dict(zip(keys, parts, strict=True))
    if kind in (tuple, list):
        return kind(parts)
    return CLASSES[kind](*parts) if type(kind) is str else kind(*parts)
