"""The RBF kernel."""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import numpy as np

from kerneltrick import maps
from kerneltrick.kernels import _features as features
from kerneltrick.kernels._base import Kernel
from kerneltrick.kernels._check import Floats, positive
from kerneltrick.kernels._linalg import squared_distances


@dataclasses.dataclass(frozen=True, repr=False)
class RBF(Kernel):
    """exp(−‖x − y‖²/2ℓ²) with ℓ = `length`. The gamma of scikit-learn is 1/2ℓ².

    It equals the normalised e^{x·y/ℓ²}. Its `random_features` are random Fourier features (Rahimi &
    Recht 2007): the cos and sin of m/2 orthogonal draws give m features.

    >>> RBF(length=2)([[0, 0]], [[0, 0], [2, 0]]).round(4)
    array([[1.    , 0.6065]])
    """

    length: float = 1.0
    name: ClassVar[str] = "rbf"

    def __post_init__(self) -> None:
        object.__setattr__(self, "length", positive("rbf", "length", self.length))

    def _gram(self, x: Floats, y: Floats) -> Floats:
        a = x / self.length
        return np.exp(squared_distances(a, a if x is y else y / self.length) / -2)

    def _diagonal(self, x: Floats) -> Floats:
        return np.ones(len(x))

    def random_features(self, m: int, seed: int = 0) -> maps.FeatureMap:
        favor = maps.Favor(features=m, kind="trig", seed=seed)
        return features.Unit(features.Stretched(favor, 1 / self.length))
