"""What the features of a map are called."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from kerneltrick import maps

_ELEMENTWISE = (maps.Elu, maps.Relu, maps.Relu2, maps.Exp, maps.Square)


def feature_names(feature_map: maps.FeatureMap, inputs: Sequence[str]) -> list[str]:
    """One name per feature: the monomial, the function of a coordinate, or map and number.

    >>> feature_names(maps.get("poly:degree=2"), ["a", "b"])
    ['1', 'a', 'b', 'a^2', 'a b', 'b^2']
    >>> feature_names(maps.get("elu"), ["a", "b"])
    ['elu(a)', 'elu(b)']
    >>> feature_names(maps.get("favor:features=2"), ["a", "b"])
    ['favor0', 'favor1']
    """
    if isinstance(feature_map, maps.Identity):
        return list(inputs)
    if isinstance(feature_map, _ELEMENTWISE):
        return [f"{feature_map.name}({name})" for name in inputs]
    if isinstance(feature_map, maps.Taylor):
        return _monomials(feature_map.order, ["", *inputs])
    if isinstance(feature_map, maps.Poly):
        constant = [""] if feature_map.constant > 0 else []
        return _monomials(feature_map.degree, [*constant, *inputs])
    return [f"{feature_map.name}{i}" for i in range(feature_map.dim(len(inputs)))]


def _monomials(degree: int, variables: list[str]) -> list[str]:
    """In the order of `maps.Poly`; the constant has no name of its own."""
    rows = itertools.combinations_with_replacement(variables, degree)
    return [_product([name for name in row if name]) for row in rows]


def _product(factors: list[str]) -> str:
    powers = {name: factors.count(name) for name in factors}
    return " ".join(n if p == 1 else f"{n}^{p}" for n, p in powers.items()) or "1"
