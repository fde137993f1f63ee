"""The weights of a map, and the gain of its window, as parameters of a module.""" ""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

from kerneltrick import maps
from kerneltrick._arrays import as_numpy, is_array
from kerneltrick.attention import Dial, Far, check_count, linear_attention
from kerneltrick.maps import seeded

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow


class LearnedMap(torch.nn.Module):  # type: ignore[misc] # torch is not followed by mypy
    """Hedgehog, T2R, or the gain of any map with a window, with parameters for each head.

    `setting` decides what is learned: the matrix of `hedgehog`, the matrix and bias of `t2r`, and
    the gain g of each query head if there is a window or sinks. `dial` is the map with these
    parameters in it, in the form that every function of this package takes; gradients reach them.
    Calling the module runs `linear_attention` with that dial.

    setting
        A text, map or dial. If it holds weights, learning starts from them. Otherwise Hedgehog
        starts at the identity if its matrix is square, else at random, and T2R starts at random.
    num_heads, head_dim, num_kv_heads
        The number and width of the query heads, and the number of key/value heads if groups of
        query heads share them.
    features
        The number of features m. The default is 2·head_dim for Hedgehog and the number in the text
        for T2R.
    key_weight
        Whether the keys of Hedgehog have a separate matrix, as in LoLCATs. By default queries and
        keys share one matrix for each key head.
    seed
        The seed of random starting weights.

    >>> learned = LearnedMap("hedgehog@window=8", num_heads=2, head_dim=4)
    >>> {name: tuple(x.shape) for name, x in learned.named_parameters()}
    {'weight': (2, 4, 4), 'gain': (2,)}
    >>> q, k, v = torch.randn(3, 2, 20, 4)
    >>> learned(q, k, v, causal=True).shape
    torch.Size([2, 20, 4])
    """

    def __init__(
        self,
        setting: maps.MapLike | Dial = "hedgehog",
        *,
        num_heads: int,
        head_dim: int,
        num_kv_heads: int | None = None,
        features: int | None = None,
        key_weight: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.num_heads = check_count("LearnedMap", "num_heads", num_heads, 1)
        self.head_dim = check_count("LearnedMap", "head_dim", head_dim, 1)
        shared = num_heads if num_kv_heads is None else num_kv_heads
        self.num_kv_heads = check_count("LearnedMap", "num_kv_heads", shared, 1)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"LearnedMap needs num_heads to be a multiple of num_kv_heads, not {num_heads} and "
                f"{num_kv_heads}"
            )
        dial = Dial.get(setting)
        if features is not None:
            features = check_count("LearnedMap", "features", features, 1)
        start = self._start(dial.feature_map, features, key_weight, seed)
        # With softmax no key is far, so a gain would have no effect.
        if (dial.window or dial.sinks) and dial.feature_map.has_features:
            start["gain"] = self._gain(dial)
        if not start:
            raise ValueError(
                f"there is nothing to learn in {dial}: use hedgehog or t2r, or another map with a "
                f"window, whose gain can be learned"
            )
        for name, x in start.items():
            value = torch.tensor(np.asarray(x), dtype=torch.float32)
            self.register_parameter(name, torch.nn.Parameter(value))
        plain = {name: None for name in start if name != "gain"}
        if isinstance(dial.feature_map, maps.T2R):
            plain["features"] = start["weight"].shape[-1]
        self._frame = dataclasses.replace(
            dial, feature_map=dataclasses.replace(dial.feature_map, **plain), far=None
        )
        self._relative = dial.far is not None and dial.far.relative

    def _start(
        self, feature_map: maps.FeatureMap, features: int | None, key_weight: bool, seed: int
    ) -> dict[str, Any]:
        """The starting weights, as NumPy arrays."""
        d, heads, shared = self.head_dim, self.num_heads, self.num_kv_heads
        if type(feature_map) is maps.Hedgehog:
            if features is not None and features % 2:
                raise ValueError(
                    f"hedgehog has two features for each column of its matrix, so features must be "
                    f"even, not {features}"
                )
            given = feature_map.weight
            held = given if feature_map.key_weight is None else feature_map.key_weight
            columns = d if features is None else features // 2
            if held is None:
                held = np.eye(d)
                if columns != d:
                    held = seeded("hedgehog", seed).standard_normal((d, columns)) / math.sqrt(d)
            elif features is not None and held.shape[-1] != columns:
                raise ValueError(
                    f"the weights of {feature_map} give {2 * held.shape[-1]} features, not "
                    f"{features}"
                )
            given = held if given is None else given
            if not key_weight and feature_map.key_weight is None:
                return {"weight": self._each(given, shared)}
            return {"weight": self._each(given, heads), "key_weight": self._each(held, shared)}
        if type(feature_map) is maps.T2R:
            if features is not None and feature_map.weight is None:
                feature_map = dataclasses.replace(feature_map, features=features)
            m = feature_map.dim(d)
            if features not in (None, m):
                raise ValueError(f"the weights of {feature_map} give {m} features, not {features}")
            # Above 0, so that no head starts with features, and gradients, of 0.
            bias = np.full(m, 0.1) if feature_map.bias is None else feature_map.bias
            bias = _numpy(bias).reshape(-1, 1, m)
            weight = self._each(feature_map.weights(d), shared)
            return {"weight": weight, "bias": np.repeat(bias, shared // len(bias), axis=0)}
        if features is not None:
            raise ValueError(f"only hedgehog and t2r take features, not {feature_map}")
        return {}

    def _each(self, weight: Any, heads: int) -> Any:
        """One matrix for each of `heads`, from one for all or one for each group of heads."""
        weight = _numpy(weight)
        weight = weight[None] if weight.ndim == 2 else weight
        if weight.shape[-2] != self.head_dim or heads % len(weight):
            raise ValueError(
                f"LearnedMap needs weights ({self.head_dim}, p), or such a matrix for each of "
                f"{heads} heads, not {weight.shape}"
            )
        return np.repeat(weight, heads // len(weight), axis=0)

    def _gain(self, dial: Dial) -> Any:
        far = dial.far or Far()
        gain = far.gain
        if gain is None:  # the default of linear_attention
            gain = 0.0 if far.relative else -math.log(dial.feature_map.unit(self.head_dim))
        gain = _numpy(gain)
        if gain.shape not in ((), (self.num_heads,)):
            raise ValueError(
                f"LearnedMap needs one gain, or one for each of {self.num_heads} heads, not an "
                f"array {gain.shape}"
            )
        return np.broadcast_to(gain, (self.num_heads,))

    @property
    def dial(self) -> Dial:
        """The map, window and gains, with the parameters themselves."""
        return self._filled(dict(self.named_parameters(recurse=False)))

    def copied(self) -> Dial:
        """The dial with copies of the parameters; gradients pass through the copies.

        PyTorch cannot free the memory of a tensor that NumPy has seen, but FSDP frees parameters.
        """
        return self._filled({name: x.clone() for name, x in self.named_parameters(recurse=False)})

    def export(self) -> Dial:
        """The dial with copies of the weights as NumPy arrays, for use with any array library.

        `maps.save(learned.export().feature_map, path)` writes the map.
        """
        return exported(self.dial)

    def _filled(self, weights: dict[str, Any]) -> Dial:
        gain = weights.pop("gain", None)
        feature_map = dataclasses.replace(self._frame.feature_map, **weights)
        far = None if gain is None else Far(gain, self._relative)
        return dataclasses.replace(self._frame, feature_map=feature_map, far=far)

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """`linear_attention(q, k, v, self.dial, **options)`."""
        return linear_attention(q, k, v, self.dial, **options)

    def extra_repr(self) -> str:
        return f"{self._frame}, num_heads={self.num_heads}, head_dim={self.head_dim}"


def _numpy(x: Any) -> Any:
    if isinstance(x, torch.Tensor):
        return as_numpy(x.detach())
    return np.asarray(x) if is_array(x) else np.asarray(float(x))


def exported(dial: Dial) -> Dial:
    """The dial with copies of all its tensors as NumPy arrays, half precision as float32."""

    def copied(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        values = as_numpy(x.detach())
        return np.array(values, dtype=np.float32 if values.itemsize < 4 else values.dtype)

    return _converted(dial, copied)


def as_tensors(dial: Dial, dtype: torch.dtype) -> Dial:
    """The dial with copies of all its NumPy arrays as tensors."""
    return _converted(
        dial, lambda x: torch.tensor(x, dtype=dtype) if isinstance(x, np.ndarray) else x
    )


def _converted(dial: Dial, convert: Callable[[Any], Any]) -> Dial:
    """The dial with its weights and gains converted."""
    own = dial.feature_map
    weights = {field.name: convert(getattr(own, field.name)) for field in dataclasses.fields(own)}
    far = None if dial.far is None else Far(convert(dial.far.gain), dial.far.relative)
    return dataclasses.replace(dial, feature_map=dataclasses.replace(own, **weights), far=far)
