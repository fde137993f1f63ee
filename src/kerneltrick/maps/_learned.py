"""Maps with weights, trained to imitate softmax: Hedgehog and T2R."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

from kerneltrick._arrays import Array, constant, is_array, space, tree
from kerneltrick.maps._base import (
    CoreRecipe,
    FeatureMap,
    Features,
    Fused,
    Sign,
    one_of,
    positive_int,
    seeded,
)
from kerneltrick.maps._declared import Operations
from kerneltrick.maps._elementwise import Relu, shifted_exp


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Hedgehog(FeatureMap):
    """φ(x) = softmax or exp of [xW, −xW]; Zhang et al. 2024, Eq. 6. m = 2·(columns of W).

    `weight` is (d, p), or (heads, d, p) for one matrix per head: NumPy, or an array of the library
    it is used with. None stands for the identity, with which training starts. `key_weight`, of the
    same d and p, gives keys a matrix of their own; then `phi` is that of queries. `separate` makes
    it [softmax(xW), softmax(−xW)], as LoLCATs does (Zhang et al. 2025, Eq. 6); to exp it is no
    difference.
    """

    weight: Array | None = None
    activation: str = "softmax"
    key_weight: Array | None = None
    separate: bool = False
    name: ClassVar[str] = "hedgehog"
    learnable: ClassVar[bool] = True
    approximates_softmax: ClassVar[bool] = True
    script: ClassVar[str] = """(x, { activation, separate }, n, d) => {
      const made = exponentials(mirrored(x, n, d), n, 2 * d);
      if (activation === "exp") return made;
      return plainFeatures(shares(made.values, separate ? d : 2 * d), 2 * d);
    }"""

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("hedgehog", "activation", self.activation, ("softmax", "exp"))
        if not isinstance(self.separate, bool):
            raise TypeError(f"hedgehog needs separate to be True or False, not {self.separate!r}")
        _check_weight("hedgehog", self.weight)
        _check_weight("hedgehog", self.key_weight, "key_weight")
        if self.key_weight is not None:
            theirs = tuple(self.key_weight.shape[-2:])
            ours = theirs[:1] * 2 if self.weight is None else tuple(self.weight.shape[-2:])
            if ours != theirs:
                raise ValueError(
                    f"hedgehog needs weight and key_weight of the same d and p, not {ours} and "
                    f"{theirs}"
                )

    @property
    def sign(self) -> Sign:
        return "positive"

    def dim(self, d: int) -> int:
        weight = self.key_weight if self.weight is None else self.weight
        return 2 * (d if weight is None else int(weight.shape[-1]))

    @property
    def formula(self) -> str | None:
        if self.weight is not None or self.key_weight is not None:
            return None
        apart = self.separate and self.activation == "softmax"
        return _FORMULAS["separate" if apart else self.activation]

    def operations(self, width: Any) -> Operations:
        half = width if self.weight is None else int(self.weight.shape[-1])
        products = 0 if self.weight is None else width * half
        m = 2 * half
        normalised = 2 * m if self.activation == "softmax" else 0  # sum, division
        # −y; maximum, difference, exp
        return Operations(m, products, 2 * products, half + 3 * m + normalised)

    def unit(self, d: int) -> float:
        """φ(0)·φ(0), where e^{q·k} is 1: whatever the weights have learned, the same."""
        m = self.dim(d)
        if self.activation == "exp":
            return float(m)
        return 4 / m if self.separate else 1 / m

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        return _whole(self.phi_query(x))

    def phi_query(self, x: Array, positions: Array | None = None) -> Features:
        return self._features(x, self.weight)

    def phi_key(self, x: Array, positions: Array | None = None) -> Features:
        return self._features(x, self.weight if self.key_weight is None else self.key_weight)

    @property
    def for_keys(self) -> FeatureMap:
        if self.key_weight is None:
            return self
        return Hedgehog(self.key_weight, self.activation, separate=self.separate)

    def fused(self) -> Fused:
        apart = str(self.separate).lower()
        text = f"hedgehog:activation={self.activation},separate={apart}"
        return Fused(text, self.weight, None, self.key_weight)

    def core_recipe(self, d: int, columns: int) -> CoreRecipe:
        apart = self.separate and self.activation == "softmax"
        p = columns or d
        return CoreRecipe(f"hedgehog_{'separate' if apart else self.activation}", p, 2 * p)

    def _features(self, x: Array, weight: Array | None) -> Features:
        xp = space(x)
        y = x if weight is None else _project("hedgehog", x, weight)
        if self.activation == "exp":
            return shifted_exp(xp.concat([y, -y], axis=-1))
        if self.separate:
            return xp.concat([_softmax(y), _softmax(-y)], axis=-1), None
        return _softmax(xp.concat([y, -y], axis=-1)), None


_FORMULAS = {  # of Hedgehog without weights
    "exp": "[exp(x[i]) for i, exp(-x[i]) for i]",
    "softmax": "[exp(x[i])/sum(j, exp(x[j]) + exp(-x[j])) for i, "
    "exp(-x[i])/sum(j, exp(x[j]) + exp(-x[j])) for i]",
    "separate": "[exp(x[i])/sum(j, exp(x[j])) for i, exp(-x[i])/sum(j, exp(-x[j])) for i]",
}


def _softmax(x: Array) -> Array:
    features, _ = shifted_exp(x)
    return features / space(x).sum(features, axis=-1, keepdims=True)


def _whole(made: Features) -> Array:
    features, log_scale = made
    return features if log_scale is None else features * space(features).exp(log_scale)[..., None]


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class T2R(FeatureMap):
    """φ(x) = ReLU(xW + b); Kasai et al. 2021, Eq. 4. m = columns of W.

    `weight` is (d, m) or (heads, d, m), `bias` (m,) or (heads, 1, m). Without them W is drawn
    from N(0, 1/d) with `seed`, and b = 0, with which training starts.
    """

    features: int = 32
    seed: int = 0
    weight: Array | None = None
    bias: Array | None = None
    name: ClassVar[str] = "t2r"
    learnable: ClassVar[bool] = True
    flat_below_zero: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("features",)
    script: ClassVar[str] = """(x, parameters, n, d, projection) => {
      if (!projection) return null;
      return plainFeatures(project(x, projection, n, d).map(relu), projection.length / d);
    }"""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_weight("t2r", self.weight)
        if self.weight is not None:
            object.__setattr__(self, "features", int(self.weight.shape[-1]))
        positive_int("t2r", "features", self.features)
        if self.bias is not None and not is_array(self.bias):
            raise ValueError(f"t2r needs bias to be an array, not {type(self.bias).__name__}")
        if self.bias is not None and self.bias.shape[-1] != self.features:
            raise ValueError(
                f"t2r needs one bias for each of its {self.features} features, "
                f"not an array {tuple(self.bias.shape)}"
            )

    @property
    def sign(self) -> Sign:
        return "non-negative"

    def dim(self, d: int) -> int:
        return self.features

    def unit(self, d: int) -> float:
        """The mean of φ(q)·φ(k) where xW is standard normal, as it is before training."""
        return self.features / (2 * math.pi)

    def fused(self) -> Fused:
        return Fused(f"t2r:features={self.features},seed={self.seed}", self.weight, self.bias)

    def core_recipe(self, d: int, columns: int) -> CoreRecipe:
        return CoreRecipe("t2r", weight=None if columns else self.weights(d))

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        y = _project("t2r", x, self.weights(x.shape[-1]))
        if self.bias is None:
            return Relu().phi(y)
        bias = constant(self.bias, x)
        if bias.ndim == 3 and bias.shape[0] > 1:  # grouped queries share the bias of their key head
            bias = space(x).repeat(bias, x.shape[-3] // bias.shape[0], axis=0)
        return Relu().phi(y + bias)

    def operations(self, width: Any) -> Operations:
        m = self.features
        bias = 0 if self.bias is None else m
        return Operations(m, m * width, 2 * m * width, m + bias)

    def weights(self, d: int) -> Array:
        """W, as given or as drawn from the seed."""
        if self.weight is not None:
            return self.weight
        return seeded("t2r", self.seed).standard_normal((d, self.features)) / math.sqrt(d)


def _check_weight(owner: str, weight: Array | None, name: str = "weight") -> None:
    if weight is None:
        return
    if not is_array(weight) or weight.ndim not in (2, 3):
        got = tuple(weight.shape) if hasattr(weight, "shape") else type(weight).__name__
        raise ValueError(f"{owner} needs {name} to be an array (d, p) or (heads, d, p), not {got}")


def _project(owner: str, x: Array, weight: Array) -> Array:
    if weight.shape[-2] != x.shape[-1]:
        raise ValueError(
            f"{owner} has weights for inputs of {weight.shape[-2]} dimensions, "
            f"but x has {x.shape[-1]} (x: {tuple(x.shape)}, weight: {tuple(weight.shape)})"
        )
    weight = constant(weight, x)
    if weight.ndim == 3 and x.shape[-3:-2] != weight.shape[:1]:
        heads = x.shape[-3] if x.ndim > 2 else 1
        if heads % weight.shape[0]:
            raise ValueError(
                f"{owner} has weights for {weight.shape[0]} heads, but x has {heads} "
                f"(x: {tuple(x.shape)}, weight: {tuple(weight.shape)})"
            )
        weight = space(x).repeat(weight, heads // weight.shape[0], axis=0)  # grouped queries
    return x @ weight
