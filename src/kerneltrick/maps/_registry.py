"""Maps by name: `get("favor:features=128,kind=trig")`."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Callable
from typing import Any

from kerneltrick import _text
from kerneltrick._arrays import Array
from kerneltrick.maps._base import Custom, FeatureMap, Fused
from kerneltrick.maps._cosformer import Cosformer
from kerneltrick.maps._elementwise import Elu, Exp, Identity, Relu, Relu2, Square
from kerneltrick.maps._favor import Favor
from kerneltrick.maps._focused import Focused
from kerneltrick.maps._learned import T2R, Hedgehog
from kerneltrick.maps._polynomial import Poly, Taylor
from kerneltrick.maps._softmax import Softmax

MapLike = str | FeatureMap | Callable[[Array], Array]

_REGISTRY: dict[str, type[FeatureMap]] = {
    cls.name: cls
    for cls in (
        Identity,
        Elu,
        Relu,
        Relu2,
        Exp,
        Square,
        Focused,
        Cosformer,
        Favor,
        Poly,
        Taylor,
        Hedgehog,
        T2R,
        Softmax,
    )
}


def names() -> list[str]:
    """The names that `get` knows."""
    return list(_REGISTRY)


def classes() -> list[type[FeatureMap]]:
    """The classes of the maps that `get` knows."""
    return list(_REGISTRY.values())


def is_ours(feature_map: object) -> bool:
    """Whether a text and weights say all about a map: not of functions and subclasses."""
    return type(feature_map) in _REGISTRY.values()


def fused(feature_map: FeatureMap) -> Fused | None:
    """How to ask the compiled core for a map; None for those that it does not know.

    Subclasses and functions may do anything, so the core knows none of them.
    """
    return feature_map.fused() if is_ours(feature_map) else None


def get(feature_map: MapLike) -> FeatureMap:
    """The map for a text `name:key=value,key=value`, a map (itself) or a function x → φ(x).

    >>> str(get("favor:features=128,kind=trig"))
    'favor:features=128,kind=trig'
    >>> get("poly:degree=2").dim(64)
    2145
    """
    if isinstance(feature_map, FeatureMap):
        return feature_map
    if isinstance(feature_map, str):
        return _parse(feature_map)
    if isinstance(feature_map, type):
        raise TypeError(f"{feature_map.__name__} is a class; make a map of it first, with its ()")
    if callable(feature_map):
        return Custom(feature_map)
    raise TypeError(
        "a feature map is a name such as 'elu', a FeatureMap or a function x -> φ(x), "
        f"not {type(feature_map).__name__}"
    )


@functools.lru_cache(maxsize=256)  # one object per text, so that compiled code is found again
def _parse(text: str) -> FeatureMap:
    if "@" in text:
        raise ValueError(
            f"{text!r} is attention with a window; the map alone is {text.partition('@')[0]!r}"
        )
    name, given = _text.split("feature map", text)
    return from_fields(name, given, {})


def from_fields(name: str, given: dict[str, str], weights: dict[str, Array]) -> FeatureMap:
    """The map of that name, its parameters from texts and its weights from arrays."""
    if name not in _REGISTRY:
        raise ValueError(f"unknown feature map {name!r}; {_text.nearest(name, _REGISTRY)}")
    cls = _REGISTRY[name]
    hints = typing.get_type_hints(cls)
    fields = {f.name: hints[f.name] for f in dataclasses.fields(cls) if _writable(hints[f.name])}
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key not in fields:
            known = _text.nearest(key, fields) if fields else "it has no parameters"
            raise ValueError(f"{name} has no parameter {key!r} that text can give; {known}")
        values[key] = _read(name, key, value, fields[key])
    missing = [
        f.name
        for f in dataclasses.fields(cls)
        if f.default is dataclasses.MISSING and f.name not in values
    ]
    if missing:
        raise ValueError(f"{name} needs {missing[0]}: write {name}:{missing[0]}=...")
    unknown = set(weights) - {f.name for f in dataclasses.fields(cls)} | set(weights) & set(fields)
    if unknown:
        raise ValueError(f"{name} has no weights {sorted(unknown)}")
    return cls(**values, **weights)


def _writable(hint: Any) -> bool:
    """Whether a parameter can be written as text; arrays cannot."""
    return hint in (int, float, bool, str)


def _read(name: str, key: str, value: str, kind: type | types.UnionType) -> Any:
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise ValueError(f"{name} needs {key} to be true or false, not {value!r}")
        return value.lower() == "true"
    if kind is str:
        return value
    try:
        return int(value) if kind is int else float(value)
    except ValueError:
        expected = "a whole number" if kind is int else "a number"
        raise ValueError(f"{name} needs {key} to be {expected}, not {value!r}") from None
