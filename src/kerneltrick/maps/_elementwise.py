"""Maps that act on each coordinate alone: m = d, φ(q)·φ(k) = Σ f(qᵢ)f(kᵢ)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from kerneltrick._arrays import Array, constant, space, stop_gradient, tree
from kerneltrick.maps._base import CoreRecipe, FeatureMap, Features, Fused, Sign
from kerneltrick.maps._declared import Operations


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Elementwise(FeatureMap):
    """A map without parameters that the compiled core knows by its name."""

    coordinate: ClassVar[str] = ""  # one feature, in the language of `kerneltrick prove`
    products: ClassVar[int] = 0  # multiplications for each coordinate
    others: ClassVar[int] = 0  # other operations for each coordinate

    def fused(self) -> Fused:
        return Fused(self.name)

    @property
    def formula(self) -> str:
        return f"[{self.coordinate} for i]"

    def operations(self, width: Any) -> Operations:
        products = self.products * width
        return Operations(width, products, 2 * products, self.others * width)

    def feature_names(self, inputs: Sequence[str]) -> list[str]:
        return [f"{self.name}({x})" for x in inputs]


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Identity(Elementwise):
    """φ(x) = x. The similarity q·k may be negative; unnormalised, (QKᵀ)V = Q(KᵀV) exactly."""

    name: ClassVar[str] = "identity"
    script: ClassVar[str] = "elementwise((x) => x)"

    @property
    def formula(self) -> str:
        return "[x]"

    def feature_names(self, inputs: Sequence[str]) -> list[str]:
        return list(inputs)

    def core_recipe(self, d: int, columns: int) -> CoreRecipe:
        return CoreRecipe("given")

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        return x

    def kernel(
        self,
        q: Array,
        k: Array,
        q_positions: Array | None = None,
        k_positions: Array | None = None,
    ) -> Array:
        return q @ k.mT


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Elu(Elementwise):
    """φ(x) = ELU(x) + 1: x + 1 where x > 0, else eˣ. Strictly positive.

    Katharopoulos et al. 2020, "Transformers are RNNs", Eq. 7. Never computed as elu(x) + 1, which
    cancels to 0 at x ≈ −17 in float32.
    """

    name: ClassVar[str] = "elu"
    script: ClassVar[str] = "elementwise((x) => Math.exp(Math.min(x, 0)) + Math.max(x, 0))"
    coordinate: ClassVar[str] = "elu(x[i]) + 1"
    others: ClassVar[int] = 4  # minimum, exp, maximum, sum

    @property
    def sign(self) -> Sign:
        return "positive"

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        xp = space(x)
        zero = constant(np.zeros(()), x)
        # e^0 + x = 1 + x above 0 and e^x + 0 below: no branch, and no exp of a large number.
        return xp.exp(xp.minimum(x, zero)) + xp.maximum(x, zero)


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Relu(Elementwise):
    """φ(x) = max(0, x). Non-negative, not positive: a normaliser of 0 happens and is reported."""

    name: ClassVar[str] = "relu"
    flat_below_zero: ClassVar[bool] = True
    script: ClassVar[str] = "elementwise(relu)"
    coordinate: ClassVar[str] = "relu(x[i])"
    others: ClassVar[int] = 1

    @property
    def sign(self) -> Sign:
        return "non-negative"

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        return space(x).maximum(x, constant(np.zeros(()), x))


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Relu2(Relu):
    """φ(x) = max(0, x)². Non-negative, smoother than ReLU at 0."""

    name: ClassVar[str] = "relu2"
    flat_below_zero: ClassVar[bool] = True
    script: ClassVar[str] = "elementwise((x) => relu(x) ** 2)"
    coordinate: ClassVar[str] = "relu(x[i])**2"
    products: ClassVar[int] = 1

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        y = super().phi(x)
        return y * y


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Exp(Elementwise):
    """φ(x) = eˣ elementwise. Positive; φ(q)·φ(k) = Σ exp(qᵢ + kᵢ)."""

    name: ClassVar[str] = "exp"
    script: ClassVar[str] = "(x, parameters, n, d) => exponentials(x, n, d)"
    coordinate: ClassVar[str] = "exp(x[i])"
    others: ClassVar[int] = 1

    @property
    def sign(self) -> Sign:
        return "positive"

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        return space(x).exp(x)

    def phi_query(self, x: Array, positions: Array | None = None) -> Features:
        return shifted_exp(x)


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Square(Elementwise):
    """φ(x) = x² elementwise. Non-negative; φ(q)·φ(k) = Σ qᵢ²kᵢ², not (q·k)²."""

    name: ClassVar[str] = "square"
    script: ClassVar[str] = "elementwise((x) => x * x)"
    coordinate: ClassVar[str] = "x[i]**2"
    products: ClassVar[int] = 1

    @property
    def sign(self) -> Sign:
        return "non-negative"

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        return x * x


def shifted_exp(exponents: Array) -> Features:
    """exp(exponents) as (features ≤ 1, log_scale): the largest feature of each token is 1."""
    xp = space(exponents)
    top = stop_gradient(xp.max(exponents, axis=-1, keepdims=True))
    return xp.exp(exponents - top), top[..., 0]
