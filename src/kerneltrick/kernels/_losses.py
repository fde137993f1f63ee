"""The losses of `rkhs_descent`: value, derivative and curvature bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

import numpy as np

from kerneltrick.kernels._check import Floats

LossName = Literal["squared", "logistic", "hinge"]


class Loss(NamedTuple):
    """A loss ℓ(f, y). `curvature` bounds ℓ″ (None for a kink); `labels` says that y must be ±1."""

    value: Callable[[Floats, Floats], Floats]
    derivative: Callable[[Floats, Floats], Floats]
    curvature: float | None
    labels: bool


def _logistic(f: Floats, y: Floats) -> Floats:
    return np.logaddexp(0.0, -y * f)


def _logistic_derivative(f: Floats, y: Floats) -> Floats:
    t = y * f
    small = np.exp(-np.abs(t))  # avoids the exponential of a large number
    return np.asarray(-y * np.where(t > 0, small / (1 + small), 1 / (1 + small)))


def _hinge(f: Floats, y: Floats) -> Floats:
    return np.maximum(0.0, 1 - y * f)


def _hinge_derivative(f: Floats, y: Floats) -> Floats:
    return np.where(y * f < 1, -y, 0.0)


LOSSES: dict[str, Loss] = {
    "squared": Loss(lambda f, y: (f - y) ** 2, lambda f, y: 2 * (f - y), 2.0, False),
    "logistic": Loss(_logistic, _logistic_derivative, 0.25, True),
    "hinge": Loss(_hinge, _hinge_derivative, None, True),
}
