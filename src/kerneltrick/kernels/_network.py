"""Kernels of infinitely wide ReLU networks: arc-cosine and neural tangent kernels."""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar

import numpy as np

from kerneltrick import maps
from kerneltrick.kernels import _features as features
from kerneltrick.kernels._base import Kernel
from kerneltrick.kernels._check import Floats, positive, whole
from kerneltrick.kernels._linalg import angles, squares, unit_rows


@dataclasses.dataclass(frozen=True, repr=False)
class ArcCosine(Kernel):
    """E[f(ω·x) f(ω·y)] for ω ~ N(0, I), where f is the step, ReLU or ReLU² (degree 0, 1, 2).

    θ is the angle between x and y (Cho & Saul 2009, Eq. 3–6; their kernel is twice ours):
    degree 0: (π−θ)/2π
    degree 1: ‖x‖‖y‖(sin θ + (π−θ)cos θ)/2π
    degree 2: ‖x‖²‖y‖²(3 sin θ cos θ + (π−θ)(1 + 2cos²θ))/2π
    The step is ½ at 0, so a zero vector counts as orthogonal to every vector.

    >>> ArcCosine(degree=0)([[1, 0]], [[1, 0], [0, 1], [-1, 0]])
    array([[0.5 , 0.25, 0.  ]])
    """

    degree: int = 1
    name: ClassVar[str] = "arc_cosine"

    def __post_init__(self) -> None:
        if isinstance(self.degree, bool) or self.degree not in (0, 1, 2):
            raise ValueError(f"arc_cosine needs degree 0, 1 or 2, not {self.degree!r}")
        object.__setattr__(self, "degree", int(self.degree))

    def _gram(self, x: Floats, y: Floats) -> Floats:
        u, a = unit_rows(x)
        v, b = (u, a) if x is y else unit_rows(y)
        angular = _ANGULAR[self.degree](angles(u, v))
        return np.outer(a, b) ** self.degree * angular / (2 * math.pi)

    def _diagonal(self, x: Floats) -> Floats:
        lengths = squares(x)
        if self.degree == 0:
            return np.where(np.any(x, axis=1), 0.5, 0.25)
        return lengths / 2 if self.degree == 1 else 1.5 * lengths**2

    def random_features(self, m: int, seed: int = 0) -> maps.FeatureMap:
        """The features f(ω·x)/√m with m orthogonal draws."""
        return features.ReluPower(self.degree, whole(self.name, "m", m), seed)


@dataclasses.dataclass(frozen=True, repr=False)
class NTK(Kernel):
    """The neural tangent kernel of an infinitely wide ReLU network with L hidden layers.

    It is E⟨∂f(x)/∂w, ∂f(y)/∂w⟩ for f = w_{L+1}·h_L, h_l = √(c/width)·ReLU(W_l h_{l−1}), h₀ = x,
    where all weights are N(0, 1) and trained (Jacot et al. 2018; Arora et al. 2019, Eq. 4–9):
    Σ₀ = Θ₀ = x·y,  Σ_l = c·E[ReLU·ReLU],  Θ_l = Σ_l + Θ_{l−1}·c·E[step·step],  k = Θ_L.
    c is `variance`; it is 2 with He scaling. L = 1 is the two-layer network, with the kernel
    c·(κ₁ + (x·y)κ₀), where κ₀ and κ₁ are the arc-cosine kernels.

    >>> NTK(hidden_layers=1)([[1, 0]], [[1, 0], [-1, 0]]).round(4)
    array([[2., 0.]])
    """

    hidden_layers: int = 1
    variance: float = 2.0
    name: ClassVar[str] = "ntk"

    def __post_init__(self) -> None:
        checked = whole("ntk", "hidden_layers", self.hidden_layers)
        object.__setattr__(self, "hidden_layers", checked)
        object.__setattr__(self, "variance", positive("ntk", "variance", self.variance))

    def _gram(self, x: Floats, y: Floats) -> Floats:
        u, a = unit_rows(x)
        v, b = (u, a) if x is y else unit_rows(y)
        theta = angles(u, v)
        # Both kernels are ‖x‖‖y‖ times a function of θ; sigma and tangent are these functions.
        # Apart from the factor c, their size halves with every layer.
        tangent = np.cos(theta)
        half = self.variance / 2
        for layer in range(self.hidden_layers):
            sigma = _relu(theta) / math.pi
            tangent = half ** (layer + 1) * sigma + half * tangent * _step(theta) / math.pi
            theta = _next_angle(theta)
        return np.outer(a, b) * tangent

    def _diagonal(self, x: Floats) -> Floats:
        factor = (self.hidden_layers + 1) * (self.variance / 2) ** self.hidden_layers
        return factor * squares(x)

    def random_features(self, m: int, seed: int = 0) -> maps.FeatureMap:
        """The m·(d+1) features [ReLU(ω·x), step(ω·x)⊗x]·√(c/m), the gradient of m hidden units."""
        if self.hidden_layers > 1:
            raise ValueError(f"{self} has random features only for one hidden layer")
        relu, step = (ArcCosine(degree).random_features(m, seed) for degree in (1, 0))
        gradient = features.Joined(relu, features.Crossed(step, maps.Identity()))
        return features.Weighted(gradient, math.sqrt(self.variance))


def _step(theta: Floats) -> Floats:
    return math.pi - theta


def _relu(theta: Floats) -> Floats:
    return np.sin(theta) + (math.pi - theta) * np.cos(theta)


def _relu2(theta: Floats) -> Floats:
    sin, cos = np.sin(theta), np.cos(theta)
    return np.asarray(3 * sin * cos + (math.pi - theta) * (1 + 2 * cos**2))


_ANGULAR = (_step, _relu, _relu2)


def _next_angle(theta: Floats) -> Floats:
    """The angle after a ReLU layer, cos θ′ = (sin θ + (π−θ)cos θ)/π, computed from 1 − cos θ′.

    1 − cos θ = 2 sin²(θ/2) does not cancel at small angles. There arccos would lose half of the
    digits and make the Gram matrix of close points indefinite.
    """
    gap = 2 * np.sin(theta / 2) ** 2 + (theta * np.cos(theta) - np.sin(theta)) / math.pi
    return 2 * np.arcsin(np.sqrt(np.clip(gap, 0.0, 2.0) / 2))
