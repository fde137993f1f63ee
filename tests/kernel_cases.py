"""The kernels that tests go through, and data for them."""

import numpy as np
from cases import each

from kerneltrick.kernels import (
    NTK,
    RBF,
    ArcCosine,
    Cosine,
    EluDot,
    Exponential,
    Linear,
    MapKernel,
    Normalized,
    Polynomial,
    ReluDot,
    Taylor,
)

EXACT = [
    Linear(),
    Cosine(),
    Polynomial(degree=2),
    Polynomial(degree=3, constant=0),
    Taylor(order=2),
    Taylor(order=3, scale=0.7),
    MapKernel("elu"),
    MapKernel("favor:features=16"),
    MapKernel("hedgehog"),
    MapKernel(lambda x: np.concatenate([x, x**2], axis=-1)),
    2.5 * Linear() + Polynomial(degree=2),
    Linear() * Taylor(order=2, scale=1),
    Normalized(Polynomial(degree=2)),
]
INFINITE = [
    RBF(length=1.5),
    Exponential(),
    Exponential(scale=0.3),
    ArcCosine(degree=0),
    ArcCosine(degree=1),
    ArcCosine(degree=2),
    NTK(hidden_layers=1),
    NTK(hidden_layers=4, variance=1.5),
    0.5 * RBF() + Linear() * RBF(length=3),
    Normalized(Exponential(scale=1)),
]
DEFINITE = EXACT + INFINITE
INDEFINITE = [ReluDot(), EluDot()]
every = each("kernel", DEFINITE + INDEFINITE)
definite = each("kernel", DEFINITE)
exact = each("kernel", EXACT)


def points(n=12, d=3, seed=0):
    return np.random.default_rng([seed, 77]).standard_normal((n, d))


def problem(n=40, d=3, seed=1):
    """Points, targets and labels that a smooth function explains in part."""
    rng = np.random.default_rng([seed, 78])
    x = rng.standard_normal((n, d))
    f = np.sin(2 * x[:, 0]) + x[:, 1] * x[:, 2]
    y = f + 0.3 * rng.standard_normal(n)
    return x, y, np.where(y > 0, 1.0, -1.0)
