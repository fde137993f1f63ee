"""The base class of kernels, and kernels that are built from other kernels."""

from __future__ import annotations

import dataclasses
import math
import numbers
from typing import Any, ClassVar

import numpy as np

from kerneltrick import maps
from kerneltrick.kernels import _features as features
from kerneltrick.kernels._check import Floats, points, positive, same_width, whole


@dataclasses.dataclass(frozen=True, repr=False)
class Kernel:
    """A similarity k(x, y) of points. Called with (n_x, d) and (n_y, d), it returns (n_x, n_y).

    Kernels can be added, multiplied and scaled: `k1 + k2`, `k1 * k2` and `3 * k1` are kernels with
    the feature maps [φ₁, φ₂], φ₁⊗φ₂ and √3·φ₁. All numbers are float64.

    >>> import numpy as np
    >>> from kerneltrick import kernels
    >>> x = np.array([[1.0, 2.0], [3.0, 4.0]])
    >>> kernels.Polynomial(degree=2)(x)
    array([[ 36., 144.],
           [144., 676.]])
    >>> str(2 * kernels.Linear() + kernels.RBF(length=0.5))
    '2 * linear + rbf:length=0.5'
    """

    name: ClassVar[str] = ""
    positive_semidefinite: ClassVar[bool | None] = True  # None: unknown

    def __call__(self, x: Any, y: Any = None) -> Floats:
        """The similarities between the rows of x and y, or between the rows of x if y is None."""
        first = points(str(self), "x", x)
        second = first if y is None or y is x else points(str(self), "y", y)
        same_width(str(self), first, second)
        with np.errstate(over="ignore", invalid="ignore"):
            return self._checked(self._gram(first, second))

    def diagonal(self, x: Any) -> Floats:
        """k(xᵢ, xᵢ) as (n,), without computing the n×n matrix."""
        checked = points(str(self), "x", x)
        with np.errstate(over="ignore", invalid="ignore"):
            return self._checked(self._diagonal(checked))

    @property
    def feature_map(self) -> maps.FeatureMap | None:
        """A finite map φ with k(x, y) = φ(x)·φ(y), or None."""
        return None

    def random_features(self, m: int, seed: int = 0) -> maps.FeatureMap:
        """A map with m random features, drawn from `seed`, whose mean kernel is this one."""
        raise ValueError(f"{self} has no random features")

    def _gram(self, x: Floats, y: Floats) -> Floats:
        raise NotImplementedError

    def _diagonal(self, x: Floats) -> Floats:
        raise NotImplementedError

    def _checked(self, values: Floats) -> Floats:
        if np.isfinite(values).all():
            return values
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
        i, j = place if len(place) == 2 else place * 2
        raise ValueError(
            f"{self} is {values[place]} between point {i} and point {j}: "
            f"scale the points down or use a smaller scale"
        )

    def __add__(self, other: Any) -> Kernel:
        return Sum(self, other) if isinstance(other, Kernel) else NotImplemented

    def __mul__(self, other: Any) -> Kernel:
        if isinstance(other, Kernel):
            return Product(self, other)
        return Scaled(self, float(other)) if isinstance(other, numbers.Real) else NotImplemented

    __rmul__ = __mul__

    def __str__(self) -> str:
        given = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        parts = [f"{name}={_write(value)}" for name, value in given if value is not None]
        return self.name + (":" + ",".join(parts) if parts else "")

    def __repr__(self) -> str:
        return f"<kernel {self}>"


@dataclasses.dataclass(frozen=True, repr=False)
class _Pair(Kernel):
    left: Kernel
    right: Kernel

    @property
    def positive_semidefinite(self) -> bool | None:  # type: ignore[override] # it depends
        parts = (self.left.positive_semidefinite, self.right.positive_semidefinite)
        return True if parts == (True, True) else None

    def _random(self, m: int, seed: int) -> tuple[maps.FeatureMap, maps.FeatureMap]:
        """The exact map of each kernel if it has one, or else a random one with its own draws."""
        left = self.left.feature_map or self.left.random_features(m, 2 * seed)
        return left, self.right.feature_map or self.right.random_features(m, 2 * seed + 1)


@dataclasses.dataclass(frozen=True, repr=False)
class Sum(_Pair):
    """k₁(x, y) + k₂(x, y), with φ = [φ₁, φ₂]."""

    def _gram(self, x: Floats, y: Floats) -> Floats:
        return self.left._gram(x, y) + self.right._gram(x, y)

    def _diagonal(self, x: Floats) -> Floats:
        return self.left._diagonal(x) + self.right._diagonal(x)

    @property
    def feature_map(self) -> maps.FeatureMap | None:
        left, right = self.left.feature_map, self.right.feature_map
        return None if left is None or right is None else features.Joined(left, right)

    def random_features(self, m: int, seed: int = 0) -> maps.FeatureMap:
        """[φ₁, φ₂], where each map is exact or has m random features."""
        return features.Joined(*self._random(m, seed))

    def __str__(self) -> str:
        return f"{self.left} + {self.right}"


@dataclasses.dataclass(frozen=True, repr=False)
class Product(_Pair):
    """k₁(x, y) · k₂(x, y), positive semi-definite by Schur's theorem, with φ = φ₁⊗φ₂."""

    def _gram(self, x: Floats, y: Floats) -> Floats:
        return self.left._gram(x, y) * self.right._gram(x, y)

    def _diagonal(self, x: Floats) -> Floats:
        return self.left._diagonal(x) * self.right._diagonal(x)

    @property
    def feature_map(self) -> maps.FeatureMap | None:
        left, right = self.left.feature_map, self.right.feature_map
        return None if left is None or right is None else features.Crossed(left, right)

    def random_features(self, m: int, seed: int = 0) -> maps.FeatureMap:
        """φ₁⊗φ₂, where each map is exact or has m random features with its own draws."""
        return features.Crossed(*self._random(m, seed))

    def __str__(self) -> str:
        return " * ".join(_bracketed(part) for part in (self.left, self.right))


@dataclasses.dataclass(frozen=True, repr=False)
class Scaled(Kernel):
    """c · k(x, y) for c > 0, with the map √c·φ."""

    base: Kernel
    factor: float

    def __post_init__(self) -> None:
        why = ": a negative multiple of a kernel is not positive semi-definite"
        object.__setattr__(self, "factor", positive("c * kernel", "c", self.factor, why))

    @property
    def positive_semidefinite(self) -> bool | None:  # type: ignore[override] # it depends
        return self.base.positive_semidefinite

    def _gram(self, x: Floats, y: Floats) -> Floats:
        return self.factor * self.base._gram(x, y)

    def _diagonal(self, x: Floats) -> Floats:
        return self.factor * self.base._diagonal(x)

    @property
    def feature_map(self) -> maps.FeatureMap | None:
        base = self.base.feature_map
        return None if base is None else features.Weighted(base, math.sqrt(self.factor))

    def random_features(self, m: int, seed: int = 0) -> maps.FeatureMap:
        return features.Weighted(self.base.random_features(m, seed), math.sqrt(self.factor))

    def __str__(self) -> str:
        return f"{_write(self.factor)} * {_bracketed(self.base)}"


@dataclasses.dataclass(frozen=True, repr=False)
class Normalized(Kernel):
    """k(x, y)/√(k(x, x) k(y, y)), with the map φ/‖φ‖.

    The normalized e^{x·y} is the RBF kernel of length 1. Points with k(x, x) ≤ 0 are refused,
    because the kernel is not defined there.
    """

    base: Kernel

    @property
    def positive_semidefinite(self) -> bool | None:  # type: ignore[override] # it depends
        return self.base.positive_semidefinite

    def _gram(self, x: Floats, y: Floats) -> Floats:
        a = self._lengths(x)
        b = a if x is y else self._lengths(y)
        return self.base._gram(x, y) / a[:, None] / b[None, :]

    def _diagonal(self, x: Floats) -> Floats:
        self._lengths(x)
        return np.ones(len(x))

    def _lengths(self, x: Floats) -> Floats:
        squares = self.base._diagonal(x)
        if not (squares > 0).all():
            row = int(np.argmin(squares > 0))
            raise ValueError(
                f"{self} is not defined at point {row}, where k(x, x) of {self.base} is "
                f"{squares[row]:g}; remove such points"
            )
        return np.sqrt(squares)

    @property
    def feature_map(self) -> maps.FeatureMap | None:
        base = self.base.feature_map
        return None if base is None else features.Unit(base)

    def random_features(self, m: int, seed: int = 0) -> maps.FeatureMap:
        """The features of the base kernel, scaled to length 1 for each point."""
        return features.Unit(self.base.random_features(whole(str(self), "m", m), seed))

    def __str__(self) -> str:
        return f"normalized({self.base})"


def _bracketed(kernel: Kernel) -> str:
    return f"({kernel})" if isinstance(kernel, Sum) else str(kernel)


def _write(value: Any) -> str:
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)
