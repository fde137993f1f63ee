"""Look up kernels by name: `get("rbf:length=2")`."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Callable
from typing import Any

from kerneltrick import _text, maps
from kerneltrick.kernels._base import Kernel
from kerneltrick.kernels._check import Floats
from kerneltrick.kernels._dot import (
    Cosine,
    EluDot,
    Exponential,
    Linear,
    Polynomial,
    ReluDot,
    Taylor,
)
from kerneltrick.kernels._network import NTK, ArcCosine
from kerneltrick.kernels._of_map import Custom, MapKernel
from kerneltrick.kernels._shift import RBF

KernelLike = str | Kernel | maps.FeatureMap | Callable[[Floats, Floats], Any]

_REGISTRY: dict[str, type[Kernel]] = {
    cls.name: cls
    for cls in (
        Linear, Cosine, ReluDot, EluDot, Polynomial, RBF, Exponential, Taylor, ArcCosine, NTK,
    )
}  # fmt: skip


def names() -> list[str]:
    """The names that `get` knows."""
    return list(_REGISTRY)


def get(kernel: KernelLike) -> Kernel:
    """The kernel for a text `name:key=value`, a feature map or a function. A kernel is returned.

    A function takes points (n_x, d) and (n_y, d) and returns (n_x, n_y).

    >>> get("rbf:length=2")
    <kernel rbf:length=2>
    >>> get(maps.get("elu"))
    <kernel map(elu)>
    """
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, maps.FeatureMap):
        return MapKernel(kernel)
    if isinstance(kernel, str):
        return _parse(kernel)
    if isinstance(kernel, type) and issubclass(kernel, Kernel):
        raise TypeError(f"{kernel.__name__} is a class; create a kernel with {kernel.__name__}()")
    if callable(kernel):
        return Custom(kernel)
    raise TypeError(
        "a kernel is a name such as 'rbf', a Kernel, a feature map or a function of two arrays of "
        f"points, not {type(kernel).__name__}"
    )


def _parse(text: str) -> Kernel:
    name, given = _text.split("kernel", text)
    if name not in _REGISTRY:
        known = _text.nearest(name, _REGISTRY)
        if name in maps.names():
            known = f"this is a feature map, and its kernel is MapKernel({text!r}); {known}"
        raise ValueError(f"unknown kernel {name!r}; {known}")
    cls = _REGISTRY[name]
    hints = typing.get_type_hints(cls)
    fields = {f.name: hints[f.name] for f in dataclasses.fields(cls)}
    values: dict[str, int | float] = {}
    for key, value in given.items():
        if key not in fields:
            known = _text.nearest(key, fields) if fields else "it has no parameters"
            raise ValueError(f"{name} has no parameter {key!r}; {known}")
        kind, expected = (int, "a whole number") if fields[key] is int else (float, "a number")
        try:
            values[key] = kind(value)
        except ValueError:
            raise ValueError(f"{name} needs {key} to be {expected}, not {value!r}") from None
    return cls(**values)
