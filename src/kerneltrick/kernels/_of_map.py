"""Kernels from feature maps, and from functions of two arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import as_numpy, is_array
from kerneltrick.kernels._base import Kernel
from kerneltrick.kernels._check import Floats
from kerneltrick.kernels._linalg import squares

_BLOCK = 64


@dataclasses.dataclass(frozen=True, repr=False)
class MapKernel(Kernel):
    """φ(x)·φ(y) for a feature map: a name such as "elu", a map, or a function x → φ(x).

    For a random map this is the kernel of its actual draws, not the kernel that they estimate.

    >>> MapKernel("elu")([[0, 1]], [[0, 1]])
    array([[5.]])
    """

    map: maps.MapLike
    name: ClassVar[str] = "map"

    def __post_init__(self) -> None:
        found = maps.get(self.map)
        if found.uses_positions:
            raise ValueError(
                f"{found} depends on positions, so it is not a kernel of points alone; use relu, "
                f"which it reweights"
            )
        if getattr(found, "key_weight", None) is not None:
            raise ValueError(
                f"{found} has separate weights for queries and keys, so it is not symmetric "
                f"and not a kernel"
            )
        object.__setattr__(self, "map", found)

    @property
    def feature_map(self) -> maps.FeatureMap:
        return maps.get(self.map)

    def _gram(self, x: Floats, y: Floats) -> Floats:
        phi = self.feature_map
        closed = type(phi).kernel is not maps.FeatureMap.kernel and not phi.weighted
        if phi.exact and closed:  # cheaper than computing features
            return np.asarray(phi.kernel(x, y), dtype=np.float64)
        a = explicit(phi, x)
        b = a if x is y else explicit(phi, y)
        return a @ b.T

    def _diagonal(self, x: Floats) -> Floats:
        return squares(explicit(self.feature_map, x))

    def __str__(self) -> str:
        return f"map({self.map})"


@dataclasses.dataclass(frozen=True, repr=False)
class Custom(Kernel):
    """A kernel from any function of (n_x, d) and (n_y, d) that returns (n_x, n_y).

    >>> Custom(lambda x, y: (x @ y.T - 1) ** 2)([[1, 2]], [[3, 4]])
    array([[100.]])
    """

    function: Callable[[Floats, Floats], Any]
    name: ClassVar[str] = "callable"
    positive_semidefinite: ClassVar[bool | None] = None

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise TypeError(
                "a kernel is a function of two arrays of points, "
                f"not {type(self.function).__name__}"
            )

    def _gram(self, x: Floats, y: Floats) -> Floats:
        values = self.function(x, y)
        array = as_numpy(values) if is_array(values) else np.asarray(values)
        if array.shape != (len(x), len(y)) or array.dtype.kind not in "fiu":
            raise ValueError(
                f"the kernel {self} must map x {x.shape} and y {y.shape} to real similarities "
                f"{(len(x), len(y))}, not {array.dtype} {array.shape}"
            )
        return array.astype(np.float64, copy=False)

    def _diagonal(self, x: Floats) -> Floats:
        blocks = [x[start : start + _BLOCK] for start in range(0, len(x), _BLOCK)]
        return np.concatenate([np.diagonal(self._gram(b, b)) for b in blocks] or [np.zeros(0)])

    def __str__(self) -> str:
        return str(getattr(self.function, "__name__", type(self.function).__name__))


def explicit(feature_map: maps.FeatureMap, x: Floats) -> Floats:
    """φ(x) as (n, m) in float64. Raises ValueError for other shapes and numbers not finite."""
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        phi = np.asarray(feature_map.phi(x))
    if phi.ndim != 2:
        raise ValueError(
            f"{feature_map} maps points {x.shape} to {phi.shape}; a kernel needs features (n, m)"
        )
    if phi.shape[1] == 0:
        raise ValueError(f"{feature_map} has no features; use the kernel 'exponential' for e^(x·y)")
    if not np.isfinite(phi).all():
        row = int(np.argwhere(~np.isfinite(phi))[0][0])
        raise ValueError(
            f"{feature_map} overflows or divides 0 by 0 at point {row}: scale the points down, or "
            f"remove points whose features are all 0"
        )
    return phi.astype(np.float64, copy=False)
