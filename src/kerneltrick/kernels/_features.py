"""Feature maps built from other maps, and random features of arc-cosine kernels."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

from kerneltrick import maps
from kerneltrick._arrays import Array, constant, space
from kerneltrick.maps import FeatureMap, draw_projection


class _BuiltMap(FeatureMap):
    """A map built from other maps, written like a function call."""

    def __str__(self) -> str:
        given = (getattr(self, field.name) for field in dataclasses.fields(self))
        return f"{self.name}({', '.join(str(v) for v in given if v is not None)})"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Stretched(_BuiltMap):
    """φ(c·x), the map of k(c·x, c·y). c defaults to d^{−1/4}, which multiplies x·y by 1/√d."""

    base: FeatureMap
    factor: float | None = None
    name: ClassVar[str] = "stretched"

    def dim(self, d: int) -> int:
        return self.base.dim(d)

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        return self.base.phi(self._stretch(x), positions)

    def phi_query(self, x: Array, positions: Array | None = None) -> tuple[Array, Array | None]:
        return self.base.phi_query(self._stretch(x), positions)

    def _stretch(self, x: Array) -> Array:
        return x * (x.shape[-1] ** -0.25 if self.factor is None else self.factor)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Weighted(_BuiltMap):
    """c·φ(x), the map of c²·k(x, y)."""

    base: FeatureMap
    factor: float
    name: ClassVar[str] = "weighted"

    def dim(self, d: int) -> int:
        return self.base.dim(d)

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        return self.base.phi(x, positions) * self.factor


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Joined(_BuiltMap):
    """[φ₁(x), φ₂(x)], the map of k₁ + k₂, with m = m₁ + m₂ features."""

    left: FeatureMap
    right: FeatureMap
    name: ClassVar[str] = "joined"

    def dim(self, d: int) -> int:
        return self.left.dim(d) + self.right.dim(d)

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        both = [self.left.phi(x, positions), self.right.phi(x, positions)]
        return space(x).concat(both, axis=-1)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Crossed(_BuiltMap):
    """φ₁(x)⊗φ₂(x), the map of k₁·k₂, with m = m₁·m₂ features."""

    left: FeatureMap
    right: FeatureMap
    name: ClassVar[str] = "crossed"

    def dim(self, d: int) -> int:
        return self.left.dim(d) * self.right.dim(d)

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        a, b = self.left.phi(x, positions), self.right.phi(x, positions)
        products = a[..., :, None] * b[..., None, :]
        return space(x).reshape(products, (*x.shape[:-1], a.shape[-1] * b.shape[-1]))


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Unit(_BuiltMap):
    """φ(x)/‖φ(x)‖, the map of the normalised kernel. The log-scale of φ cancels.

    Trigonometric FAVOR features have the exact length e^{‖x‖²/2}; normalised, they are the random
    Fourier features of Rahimi & Recht 2007.
    """

    base: FeatureMap
    name: ClassVar[str] = "unit"

    def dim(self, d: int) -> int:
        return self.base.dim(d)

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        xp = space(x)
        y, _ = self.base.phi_query(x, positions)
        lengths = xp.sqrt(xp.sum(y * y, axis=-1, keepdims=True))
        return y / lengths


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class ReluPower(FeatureMap):
    """The step, ReLU or ReLU² (degree 0, 1, 2) of ω·x, divided by √m: features of ArcCosine.

    See Cho & Saul 2009, Eq. 1. The draws ω ~ N(0, I) come from `seed` and are orthogonal in blocks.
    The step is ½ at 0.
    """

    degree: int
    features: int
    seed: int = 0
    exact: ClassVar[bool] = False
    name: ClassVar[str] = "relu_power"

    def dim(self, d: int) -> int:
        return self.features

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        xp = space(x)
        draws = draw_projection(self.features, int(x.shape[-1]), self.seed)
        projected = x @ constant(draws, x).mT
        if self.degree == 0:
            return (xp.sign(projected) + 1) / (2 * math.sqrt(self.features))
        relu = maps.Relu().phi(projected)
        return (relu if self.degree == 1 else relu * relu) / math.sqrt(self.features)
