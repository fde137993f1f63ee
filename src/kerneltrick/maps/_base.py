"""What every feature map has, and how maps are written as text."""

from __future__ import annotations

import copy
import dataclasses
import functools
import hashlib
import math
import numbers
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from kerneltrick._arrays import (
    Array,
    as_numpy,
    astype,
    compute_dtype,
    constant,
    copied,
    is_array,
    is_floating,
    library,
    space,
    tree,
    widened,
    without_values,
    zeros,
)
from kerneltrick.maps._declared import KernelForm, Monomial, Operations

Sign = Literal["positive", "non-negative", "any"]
Features = tuple[Array, Array | None]


class Fused(NamedTuple):
    """A map as the compiled core is asked for it: its text, and the weights that are not in it."""

    text: str
    weight: Array | None = None  # (d, p) or (heads, d, p)
    bias: Array | None = None  # (p,) or (heads, 1, p)
    key_weight: Array | None = None  # of keys, where they have their own


class CoreRecipe(NamedTuple):
    """How the compiled core computes a map: a kind and numbers of `engines/calls/attention.def`."""

    kind: str
    columns: int = 0  # of the weights; 0: as many as there are features
    features: int = 0  # m, where it depends on the weights; 0: that of the map's text
    numbers: Mapping[str, float] = MappingProxyType({})
    weight: np.ndarray[Any, Any] | None = None  # what the parameters of the map stand for


@dataclasses.dataclass(frozen=True, eq=False)
class FeatureMap:
    """φ: ℝᵈ → ℝᵐ, so that the similarity of q and k is φ(q)·φ(k).

    `phi` is the mathematics. Engines use `phi_query` and `phi_key`, which return
    `(features, log_scale)` with φ(x) = features · exp(log_scale), so that no finite input
    overflows where that can be avoided; log_scale is (..., n), in float64 where it pays, or None
    for 0.

    >>> import numpy as np
    >>> from kerneltrick import maps
    >>> elu = maps.get("elu")
    >>> elu.phi(np.array([[2.0, 0.0]])), elu.dim(2), elu.sign
    (array([[3., 1.]]), 2, 'positive')
    """

    name: ClassVar[str] = ""
    approximates_softmax: ClassVar[bool] = False
    exact: ClassVar[bool] = True  # φ(q)·φ(k) equals kernel(q, k), not only on average
    shown: ClassVar[tuple[str, ...]] = ()  # parameters written in the text even at their default
    script: ClassVar[str] = ""  # φ in JavaScript, for pages; see report/page/features.js
    kernel_script: ClassVar[str] = ""  # or its kernel, a function of t = q·k, where it is exact
    has_features: ClassVar[bool] = True  # False: every weight is exact, as softmax has none
    uses_positions: ClassVar[bool] = False  # φ(x) depends on where a token is
    learnable: ClassVar[bool] = False  # it has weights that a fit or a layer learns
    flat_below_zero: ClassVar[bool] = False  # its slope is 0 for all x < 0
    forms_features: ClassVar[bool] = True  # the core forms φ(x); a decay per feature needs that

    def __post_init__(self) -> None:
        """NumPy numbers become Python's, so that equal maps have one text."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool):
                continue
            if field.type in ("float", float) and isinstance(value, numbers.Real):
                object.__setattr__(self, field.name, float(value))
            elif field.type in ("int", int) and isinstance(value, numbers.Integral):
                object.__setattr__(self, field.name, int(value))

    @property
    def weighted(self) -> bool:
        """Whether the map holds arrays or code, whose values can change behind its back."""
        held = (getattr(self, field.name) for field in dataclasses.fields(self))
        return any(is_array(x) or callable(x) for x in held)

    def __eq__(self, other: object) -> bool:
        if self.weighted or type(other) is not type(self):
            return self is other
        return vars(self) == vars(other)

    def __hash__(self) -> int:
        return id(self) if self.weighted else hash((type(self), str(self)))

    @property
    def sign(self) -> Sign:
        """What φ(q)·φ(k) can be: a map that is "any" can make the normaliser cancel."""
        return "any"

    def dim(self, d: int) -> int:
        """m, the number of features of a d-dimensional input."""
        return d

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        """φ(x): (..., n, d) → (..., n, m); `positions` (..., n) matter to few maps."""
        raise NotImplementedError

    def phi_query(self, x: Array, positions: Array | None = None) -> Features:
        return self.phi(x, positions), None

    def phi_key(self, x: Array, positions: Array | None = None) -> Features:
        return self.phi_query(x, positions)

    @property
    def for_keys(self) -> FeatureMap:
        """The map whose `phi` keys take: itself, unless they have weights of their own."""
        return self

    def kernel(
        self,
        q: Array,
        k: Array,
        q_positions: Array | None = None,
        k_positions: Array | None = None,
    ) -> Array:
        """The similarities (..., n_q, n_k) that φ stands for, in closed form where there is one."""
        return self.phi(q, q_positions) @ self.for_keys.phi(k, k_positions).mT

    @property
    def formula(self) -> str | None:
        """The features in the language of `kerneltrick prove`, such as "[relu(x[i]) for i]".

        None if they cannot be written in it.
        """
        return None

    @property
    def kernel_form(self) -> KernelForm | None:
        """φ(q)·φ(k) as a function of q·k (its mean for a random map); None if it is none."""
        return None

    def monomials(self, d: int) -> Iterator[Monomial] | None:
        """The features one by one, if they are monomials of the input, in the order of `phi`."""
        return None

    def operations(self, width: Any) -> Operations | None:
        """The cost of φ for one token of this width, a number or a symbol; None if unknown."""
        return None

    def feature_names(self, inputs: Sequence[str]) -> list[str]:
        """One name for each feature: a monomial, a function of an input, or the map and a number.

        >>> from kerneltrick import maps
        >>> maps.get("poly:degree=2").feature_names(["a", "b"])
        ['1', 'a', 'b', 'a^2', 'a b', 'b^2']
        >>> maps.get("elu").feature_names(["a", "b"])
        ['elu(a)', 'elu(b)']
        >>> maps.get("favor:features=2").feature_names(["a", "b"])
        ['favor0', 'favor1']
        """
        found = self.monomials(len(inputs))
        if found is None:
            return [f"{self.name}{i}" for i in range(self.dim(len(inputs)))]
        return [monomial.named(list(inputs)) for monomial in found]

    def default_scale(self, d: int) -> float:
        """1/√d for maps that stand for softmax, else 1."""
        return 1 / math.sqrt(d) if self.approximates_softmax else 1.0

    def unit(self, d: int) -> float:
        """The size of φ(q)·φ(k) that stands for a weight of 1, so that far weights suit near ones.

        Here its mean over standard normal q and k; a map that says e^{q·k} itself has 1.
        """
        return _unit(self, d)

    def fused(self) -> Fused | None:
        """How to ask the compiled core for this very class; None if the core does not know it."""
        return None

    def core_recipe(self, d: int, columns: int) -> CoreRecipe:
        """How the core computes the map; `columns` counts those of given weights, 0 without any."""
        return CoreRecipe(self.name)

    def check_positions(self, first: int, last: int) -> None:
        """ValueError if the map cannot serve tokens at distances up to last − first."""

    def __call__(self, x: Array) -> Array:
        return self.phi(x)

    def __copy__(self) -> FeatureMap:
        """The same map with weights of its own: changing them in place changes no other."""
        made = object.__new__(type(self))
        for name, value in vars(self).items():
            object.__setattr__(made, name, copied(value) if is_array(value) else value)
        return made

    def __deepcopy__(self, memo: dict[int, Any]) -> FeatureMap:
        """The same with a copy of its code: a module of PyTorch's has weights of its own there."""
        made = self.__copy__()
        for name, value in vars(self).items():
            if not is_array(value):
                object.__setattr__(made, name, copy.deepcopy(value, memo))
        return made

    def __str__(self) -> str:
        parts = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if field.name not in self.shown and value is field.default:
                continue
            if field.name in self.shown or not _same(value, field.default):
                parts.append(f"{field.name}={_write(value)}")
        return self.name + (":" + ",".join(parts) if parts else "")

    def __repr__(self) -> str:
        return f"<feature map {self}>"


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Custom(FeatureMap):
    """Any function x → φ(x) on arrays (..., n, d), as it is; `flat` if it is to see (n, d)."""

    function: Callable[[Array], Array]
    flat: bool = False
    name: ClassVar[str] = "callable"

    def dim(self, d: int) -> int:
        return int(self.function(np.zeros((1, d))).shape[-1])

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        if self.flat:
            return self._checked(x[0, ...])[None, ...]
        return self._checked(x)

    def _checked(self, x: Array) -> Array:
        y = self.function(x)
        if not is_array(y) or library(y) != library(x) or y.shape[:-1] != x.shape[:-1]:
            raise ValueError(
                f"the feature map {self.label} must turn an array (..., n, d) into (..., n, m) of "
                f"the same library; it turned {library(x)} {tuple(x.shape)} into "
                f"{library(y)} {tuple(getattr(y, 'shape', ()))}"
            )
        if not is_floating(y):
            raise TypeError(
                f"the feature map {self.label} must return floating-point features, not {y.dtype}"
            )
        return astype(y, x.dtype)

    @property
    def label(self) -> str:
        return _label(self.function)

    def __str__(self) -> str:
        return self.name

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Custom):
            return False
        return other.function is self.function and other.flat == self.flat

    def __hash__(self) -> int:
        return hash((Custom, id(self.function), self.flat))


def feature_shape(feature_map: FeatureMap, like: Array) -> tuple[int, bool]:
    """m for keys such as `like`, and whether the map has a log-scale: asked of a token of ones."""
    lead, d = like.shape[:-2], like.shape[-1]
    if type(feature_map).__module__.startswith("kerneltrick.maps."):
        if not feature_map.weighted:
            return _shape_of(feature_map, int(d))
        if not isinstance(feature_map, Custom):
            lead = lead[-1:]  # their weights are one for all, or one for each head
    token = zeros((*lead, 1, d), like, compute_dtype(like)) + 1
    features, log_scale = feature_map.phi_key(token)
    return int(features.shape[-1]), log_scale is not None


@functools.lru_cache(maxsize=256)
def _shape_of(feature_map: FeatureMap, d: int) -> tuple[int, bool]:
    """The same of a map of ours without weights: for these it depends on d alone."""
    features, log_scale = feature_map.phi_key(np.ones((1, d)))
    return int(features.shape[-1]), log_scale is not None


def mean_similarity(feature_map: FeatureMap, like: Array) -> Array:
    """The mean of |φ(q)·φ(k)| over standard normal q and k, in the library of `like` (..., d)."""
    d = like.shape[-1]
    points = math.sqrt(feature_map.default_scale(d)) * seeded("unit", 0).standard_normal((2, 64, d))
    q, k = (constant(x[None], like, compute_dtype(like)) for x in points)
    xp = space(like)
    found = []
    for features, log_scale in (feature_map.phi_query(q), feature_map.phi_key(k)):
        found.append(features if log_scale is None else features * xp.exp(log_scale)[..., None])
    return xp.mean(xp.abs(found[0] @ found[1].mT))


@functools.lru_cache(maxsize=256)
def _unit(feature_map: FeatureMap, d: int) -> float:
    return float(mean_similarity(feature_map, np.zeros((1, d))))


def _same(value: Any, default: Any) -> bool:
    return type(value) is type(default) and bool(value == default)


def _write(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value == int(value):
        return str(int(value))
    if is_array(value):
        return digest(value)
    return _label(value) if callable(value) else str(value)


def _label(function: Callable[..., Any]) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


def digest(weights: Array) -> str:
    """A short hash that tells one set of learned weights from another."""
    if without_values():
        return "traced"
    try:
        values = as_numpy(weights)
    except Exception:  # being traced: the values are not known yet
        return "traced"
    data = np.ascontiguousarray(values, dtype=np.float64)
    return "sha256-" + hashlib.sha256(repr(data.shape).encode() + data.tobytes()).hexdigest()[:16]


def default_positions(x: Array, positions: Array | None, period: int | None = None) -> Array:
    """positions (..., n, 1) in the dtype of x; 0, 1, 2, … where none are given."""
    xp = space(x)
    if positions is None:
        positions = constant(np.arange(x.shape[-2]), x)
    positions = widened(positions)
    if period is not None:  # before rounding to x's dtype, in which large positions coincide
        positions = xp.remainder(positions, xp.full_like(positions, period))
    return xp.astype(positions, x.dtype, copy=False)[..., None]


def seeded(owner: str, seed: int) -> np.random.Generator:
    """A stream of its own: data drawn with the same seed must not repeat in the weights."""
    return np.random.default_rng([seed, *owner.encode()])


def positive_int(owner: str, name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
        raise ValueError(f"{owner} needs {name} to be a positive whole number, not {value!r}")


def one_of(owner: str, name: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{owner} needs {name} to be one of {', '.join(allowed)}, not {value!r}")
