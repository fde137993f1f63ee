"""The cost of φ and its number of features, as expressions in the input width D."""

from __future__ import annotations

from typing import NamedTuple

from kerneltrick import maps
from kerneltrick.costs._polynomial import Polynomial, symbol

ZERO = Polynomial()


class FeatureCost(NamedTuple):
    """The cost of φ for one token: features, products forward and backward, other operations."""

    features: Polynomial
    products: Polynomial
    backward: Polynomial
    elementwise: Polynomial
    counted: bool = True  # False for callables and subclasses, whose operations are unknown


def feature_cost(feature_map: maps.MapLike, d: int | None = None) -> FeatureCost:
    """The number of features m and the operations of φ for one token, as expressions in D.

    A map declares them itself, in `FeatureMap.operations`. A feature of `poly` or `taylor` is a
    coefficient times p coordinates, which takes p products. Random and learned maps project, which
    takes D products for each draw. An exp, a maximum or a division by √m is an elementwise
    operation. In the backward pass, a product costs one more for each factor that is not a
    constant. For a callable or a subclass, `d` is needed, and only m is known.

    >>> cost = feature_cost("poly:degree=2")
    >>> print(cost.features, "|", cost.products)
    D²/2 + 3·D/2 + 1 | D² + 3·D + 2
    """
    found = maps.get(feature_map)
    declared = found.operations(symbol("D")) if maps.is_ours(found) else None
    if declared is not None:
        return FeatureCost(*(ZERO + x for x in declared))
    if d is None:
        raise ValueError(
            f"the number of features of {found!r} is known only for a given width: pass d"
        )
    return FeatureCost(ZERO + found.dim(d), ZERO, ZERO, ZERO, counted=False)
