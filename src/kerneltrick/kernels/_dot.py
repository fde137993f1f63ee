"""Kernels that are functions of x·y, as most similarities of attention are."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from kerneltrick import maps
from kerneltrick.kernels import _features as features
from kerneltrick.kernels._base import Kernel
from kerneltrick.kernels._check import Floats, positive, whole
from kerneltrick.kernels._linalg import squares, unit_rows


@dataclasses.dataclass(frozen=True, repr=False)
class DotKernel(Kernel):
    """k(x, y) = f(x·y)."""

    def of(self, t: Floats, d: int) -> Floats:
        """f(t), for points of d coordinates."""
        raise NotImplementedError

    def _gram(self, x: Floats, y: Floats) -> Floats:
        return self.of(x @ y.T, x.shape[1])

    def _diagonal(self, x: Floats) -> Floats:
        return self.of(squares(x), x.shape[1])


@dataclasses.dataclass(frozen=True, repr=False)
class Linear(DotKernel):
    """x·y. It is positive semi-definite and takes values of both signs.

    >>> Linear()([[1, 2]], [[3, -4]])
    array([[-5.]])
    """

    name: ClassVar[str] = "linear"

    def of(self, t: Floats, d: int) -> Floats:
        return t

    @property
    def feature_map(self) -> maps.FeatureMap:
        return maps.Identity()


@dataclasses.dataclass(frozen=True, repr=False)
class Cosine(Kernel):
    """x·y/(‖x‖‖y‖), with φ(x) = x/‖x‖. The zero vector is refused.

    >>> Cosine()([[3, 4]], [[4, 3]])
    array([[0.96]])
    """

    name: ClassVar[str] = "cosine"

    def _gram(self, x: Floats, y: Floats) -> Floats:
        u = self._units(x)
        v = u if x is y else self._units(y)
        return u @ v.T

    def _diagonal(self, x: Floats) -> Floats:
        self._units(x)
        return np.ones(len(x))

    def _units(self, x: Floats) -> Floats:
        units, lengths = unit_rows(x)
        if not lengths.all():
            raise ValueError(
                f"cosine is not defined for zero vectors, and point "
                f"{int(np.argmin(lengths))} is one; remove such points"
            )
        return units

    @property
    def feature_map(self) -> maps.FeatureMap:
        return features.Unit(maps.Identity())


@dataclasses.dataclass(frozen=True, repr=False)
class ReluDot(DotKernel):
    """max(0, x·y). It is not positive semi-definite for d ≥ 2, so it has no feature map.

    >>> ReluDot()([[1, 2]], [[3, -4], [1, 1]])
    array([[0., 3.]])
    """

    name: ClassVar[str] = "relu_dot"
    positive_semidefinite: ClassVar[bool | None] = False

    def of(self, t: Floats, d: int) -> Floats:
        return np.maximum(t, 0.0)


@dataclasses.dataclass(frozen=True, repr=False)
class EluDot(DotKernel):
    """elu(x·y) + 1: 1 + t for t = x·y > 0, else eᵗ. It is positive, but not positive semi-definite.

    >>> from kerneltrick import kernels
    >>> result = kernels.is_positive_semidefinite(EluDot(), [[-2], [-1], [1], [2]])
    >>> bool(result), round(result.eigenvalue, 4)
    (False, -0.0114)
    """

    name: ClassVar[str] = "elu_dot"
    positive_semidefinite: ClassVar[bool | None] = False

    def of(self, t: Floats, d: int) -> Floats:
        return np.exp(np.minimum(t, 0.0)) + np.maximum(t, 0.0)


@dataclasses.dataclass(frozen=True, repr=False)
class Polynomial(DotKernel):
    """(x·y + c)ᵖ with c ≥ 0. φ is `maps.Poly` with m = C(d+p, p), or C(d+p−1, p) for c = 0.

    >>> Polynomial(degree=2)([[1, 2]], [[3, 4]])
    array([[144.]])
    """

    degree: int = 2
    constant: float = 1.0
    name: ClassVar[str] = "polynomial"

    def __post_init__(self) -> None:
        checked = maps.Poly(self.degree, self.constant)
        object.__setattr__(self, "degree", checked.degree)
        object.__setattr__(self, "constant", checked.constant)

    def of(self, t: Floats, d: int) -> Floats:
        return (t + self.constant) ** self.degree

    @property
    def feature_map(self) -> maps.FeatureMap:
        return maps.Poly(self.degree, self.constant)


@dataclasses.dataclass(frozen=True, repr=False)
class _ScaledDot(DotKernel):
    scale: float | None = None

    def __post_init__(self) -> None:
        if self.scale is not None:
            object.__setattr__(self, "scale", positive(self.name, "scale", self.scale))

    def scale_for(self, d: int) -> float:
        return 1 / math.sqrt(d) if self.scale is None else self.scale

    def _stretched(self, feature_map: maps.FeatureMap) -> maps.FeatureMap:
        """φ of √s·x."""
        return features.Stretched(feature_map, None if self.scale is None else self.scale**0.5)


@dataclasses.dataclass(frozen=True, repr=False)
class Exponential(_ScaledDot):
    """e^{s·x·y}, the kernel of softmax attention. s is `scale`, which defaults to 1/√d.

    Its feature space is infinite: it contains all monomials. `random_features` are those of FAVOR+.

    >>> Exponential(scale=1)([[1, 0]], [[1, 5]]).round(4)
    array([[2.7183]])
    """

    name: ClassVar[str] = "exponential"

    def of(self, t: Floats, d: int) -> Floats:
        return np.exp(self.scale_for(d) * t)

    def random_features(self, m: int, seed: int = 0) -> maps.FeatureMap:
        """FAVOR+ with m positive features."""
        return self._stretched(maps.Favor(features=whole(self.name, "m", m), seed=seed))


@dataclasses.dataclass(frozen=True, repr=False)
class Taylor(_ScaledDot):
    """Σ_{r≤p} tʳ/r! with t = s·x·y, the first terms of the softmax kernel; m = C(d+p, p).

    s is `scale`, which defaults to 1/√d. Arora et al. 2024 ("Based") use order p = 2.

    >>> Taylor(order=2, scale=1)([[1, 1]], [[1, 1]])
    array([[5.]])
    """

    order: int = 2
    name: ClassVar[str] = "taylor"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "order", maps.Taylor(self.order).order)

    def of(self, t: Floats, d: int) -> Floats:
        t = self.scale_for(d) * t
        total = np.ones_like(t)
        for r in range(self.order, 0, -1):  # Horner: 1 + t(1 + t/2(1 + t/3(…)))
            total = 1 + t / r * total
        return total

    @property
    def feature_map(self) -> maps.FeatureMap:
        return self._stretched(maps.Taylor(self.order))
