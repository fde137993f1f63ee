"""What φ itself costs, and how many features it has, as expressions in the input width."""

from __future__ import annotations

from typing import NamedTuple

from kerneltrick import maps
from kerneltrick.costs._polynomial import Polynomial, binomial, symbol

ZERO = Polynomial()


class FeatureCost(NamedTuple):
    """φ of one token of width D: m features, multiplications forward and backward, and the rest."""

    features: Polynomial
    products: Polynomial
    backward: Polynomial
    elementwise: Polynomial
    counted: bool = True  # False: a callable, whose inside is not known


def feature_cost(feature_map: maps.MapLike, d: int | None = None) -> FeatureCost:
    """m and the operations of φ for one token, as expressions in D.

    A feature of `poly` or `taylor` is a coefficient times p coordinates: p products. Random and
    learned maps project: D products for each draw. An exp, a maximum, a division by the root of m
    are elementwise operations. Backward, a product costs one more for each factor that is not a
    constant. For a callable `d` is needed, and only its m is known.

    >>> cost = feature_cost("poly:degree=2")
    >>> print(cost.features, "|", cost.products)
    D²/2 + 3·D/2 + 1 | D² + 3·D + 2
    """
    found = maps.get(feature_map)
    D = symbol("D")
    if isinstance(found, maps.Poly):
        m = binomial(D + found.degree - (0 if found.constant > 0 else 1), found.degree)
        return FeatureCost(m, found.degree * m, (2 * found.degree - 1) * m, ZERO)
    if isinstance(found, maps.Taylor):
        m = binomial(D + found.order, found.order)
        return FeatureCost(m, found.order * m, (2 * found.order - 1) * m, ZERO)
    if isinstance(found, maps.Favor):
        return _favor(found, D)
    if isinstance(found, maps.Hedgehog):
        return _hedgehog(found, D)
    if isinstance(found, maps.Softmax):  # no features
        return FeatureCost(ZERO, ZERO, ZERO, ZERO)
    if isinstance(found, maps.T2R):
        m = ZERO + found.features
        bias = 0 if found.bias is None else m
        return FeatureCost(m, m * D, 2 * m * D, m + bias)
    if isinstance(found, maps.Cosformer):
        return FeatureCost(2 * D, 2 * D, 2 * D, D + 2)  # ReLU; cosine and sine of the position
    simple: dict[type[maps.FeatureMap], tuple[Polynomial, Polynomial]] = {
        maps.Identity: (ZERO, ZERO),
        maps.Elu: (ZERO, 4 * D),  # minimum, exp, maximum, sum
        maps.Relu: (ZERO, D),
        maps.Relu2: (D, D),
        maps.Exp: (ZERO, D),
        maps.Square: (D, ZERO),
    }
    if type(found) in simple:
        products, elementwise = simple[type(found)]
        return FeatureCost(D, products, 2 * products, elementwise)
    if d is None:
        raise ValueError(
            f"the number of features of {found!r} is known only for a given width: pass d"
        )
    return FeatureCost(ZERO + found.dim(d), ZERO, ZERO, ZERO, counted=False)


def _favor(found: maps.Favor, D: Polynomial) -> FeatureCost:
    m, draws = ZERO + found.features, ZERO + found.draws
    products = draws * D + D  # ω·x for each draw, and ‖x‖²
    backward = draws * D + 2 * D  # ω is a constant
    if found.kind == "trig":
        return FeatureCost(m, products, backward, 2 * m + 1)  # cos or sin, division; ½ of ‖x‖²
    signs = draws if found.kind == "hyperbolic" else ZERO
    # maximum, difference, exp, division; ½ of ‖x‖² and its difference to the maximum
    return FeatureCost(m, products, backward, 4 * m + 2 + signs)


def _hedgehog(found: maps.Hedgehog, D: Polynomial) -> FeatureCost:
    half = D if found.weight is None else ZERO + int(found.weight.shape[-1])
    products = ZERO if found.weight is None else D * half
    m = 2 * half
    normalised = 2 * m if found.activation == "softmax" else ZERO  # sum, division
    # −y; maximum, difference, exp
    return FeatureCost(m, products, 2 * products, half + 3 * m + normalised)
