"""The weights of a map, and the gain of its window, as parameters of a module."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
import weakref
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np
import torch

from kerneltrick import maps
from kerneltrick._arrays import as_numpy, is_array, register_tree
from kerneltrick.attention import Dial, Far, check_count, linear_attention
from kerneltrick.maps import seeded

Tensor: TypeAlias = Any  # torch.Tensor, whose types mypy does not follow
HALF = (torch.float16, torch.bfloat16)


class LearnedMap(torch.nn.Module):  # type: ignore[misc] # torch is not followed by mypy
    """Hedgehog, T2R, or the gain of any map with a window, with parameters for each head.

    `setting` decides what is learned: the matrix of `hedgehog`, the matrix and bias of `t2r`, the
    parameters of a torch.nn.Module x (..., n, d) → φ(x) (..., n, m), which all heads share, and
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
    gain
        Whether the gain is learned.

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
        gain: bool = True,
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
        gain = gain and dial.near and dial.feature_map.has_features
        if gain:
            start["gain"] = self._gain(dial)
        modules = modules_of(dial.feature_map)
        if not start and not modules:
            raise ValueError(
                f"there is nothing to learn in {dial}: use hedgehog, t2r or a torch.nn.Module, or "
                f"another map with a window, whose gain can be learned"
            )
        for name, module in modules.items():
            self.add_module(name, module)
        for name, x in start.items():
            value = torch.tensor(np.asarray(x), dtype=torch.float32)
            self.register_parameter(name, torch.nn.Parameter(value))
        plain = {name: None for name in start if name != "gain"}
        if isinstance(dial.feature_map, maps.T2R):
            plain["features"] = start["weight"].shape[-1]
        empty = dataclasses.replace(dial.feature_map, **plain)
        for name in modules:  # the frame of a map may not have been made to be without them
            object.__setattr__(empty, name, None)
        self.frame = dataclasses.replace(dial, feature_map=empty, far=None if gain else dial.far)
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
        if gain is None and far.relative:  # the defaults of linear_attention
            gain = 0.0
        elif gain is None and isinstance(dial.feature_map, maps.Custom):  # it may know only tensors
            with torch.no_grad():
                like = torch.empty((1, self.head_dim))
                gain = -math.log(maps.mean_similarity(dial.feature_map, like))
        elif gain is None:
            gain = -math.log(dial.feature_map.unit(self.head_dim))
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
        modules = dict(self.named_children())
        if torch.compiler.is_dynamo_compiling() and isinstance(self.frame.feature_map, maps.Custom):
            self._announce()
            (module,) = modules.values()
            modules = {"function": CompiledModule(str(id(module)), _tensors(module))}
        else:
            modules = {name: _computing(module) for name, module in modules.items()}
        feature_map = dataclasses.replace(self.frame.feature_map, **weights, **modules)
        far = self.frame.far if gain is None else Far(gain, self._relative)
        return dataclasses.replace(self.frame, feature_map=feature_map, far=far)

    @torch.compiler.assume_constant_result  # type: ignore[untyped-decorator] # torch is not followed
    def _announce(self) -> None:
        for module in self.children():
            MODULES[str(id(module))] = module

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        """`linear_attention(q, k, v, self.dial, **options)`."""
        return linear_attention(q, k, v, self.dial, **options)

    def extra_repr(self) -> str:
        return f"{self.frame}, num_heads={self.num_heads}, head_dim={self.head_dim}"


# The modules that torch.compile has met, by their numbers, by which it also tells them apart.
MODULES: weakref.WeakValueDictionary[str, torch.nn.Module] = weakref.WeakValueDictionary()


class CompiledModule:
    """A module as torch.compile takes it apart: its tensors, and where all else is found."""

    def __init__(self, key: str, tensors: dict[str, Tensor]) -> None:
        self.key, self.tensors = key, tensors

    def __call__(self, x: Tensor) -> Tensor:
        return torch.func.functional_call(MODULES[self.key], self.tensors, (x,))


register_tree(CompiledModule, ("key", "tensors"))


def _tensors(module: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of a module, in the types that it computes in."""
    found = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {name: _widened(x) for name, x in found.items()}


def _widened(x: Tensor) -> Tensor:
    return x.float() if x is not None and x.dtype in HALF else x


def modules_of(feature_map: maps.FeatureMap) -> dict[str, torch.nn.Module]:
    """The modules that a map consists of, by the names of its fields.

    TypeError if it is a function that uses parameters, which nobody would train or copy.
    """
    if isinstance(feature_map, maps.Custom):
        for name, x in _used(feature_map.function):
            if any(part.requires_grad for part in _parameters(x)):
                raise TypeError(
                    f"the feature map {feature_map.label} is a function that uses the parameters "
                    f"of {name}, which a layer cannot train or copy: give it a torch.nn.Module "
                    "whose forward is the map"
                )
    held = vars(feature_map).items()
    return {name: x for name, x in held if isinstance(x, torch.nn.Module)}


def _used(function: Any) -> Iterator[tuple[str, Any]]:
    """The objects that a function, a method or a partial call refers to, by name."""
    if inspect.ismethod(function):
        yield type(function.__self__).__name__, function.__self__
    elif isinstance(function, functools.partial):
        for x in (function.func, *function.args, *function.keywords.values()):
            yield type(x).__name__, x
    elif inspect.isfunction(function):
        variables = inspect.getclosurevars(function)
        yield from variables.nonlocals.items()
        yield from variables.globals.items()


def _parameters(x: Any) -> Iterator[Tensor]:
    if isinstance(x, torch.nn.Module):
        yield from x.parameters()
    elif isinstance(x, torch.nn.Parameter):
        yield x


def _computing(module: torch.nn.Module) -> torch.nn.Module:
    """The module with parameters of half precision in float32, as φ is computed everywhere."""
    if not any(x.dtype in HALF for x in (*module.parameters(), *module.buffers())):
        return module
    made = copy.copy(module)
    for kind in ("_parameters", "_buffers"):
        vars(made)[kind] = {name: _widened(x) for name, x in vars(module)[kind].items()}
    children = vars(module)["_modules"].items()
    vars(made)["_modules"] = {name: None if x is None else _computing(x) for name, x in children}
    return made


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
