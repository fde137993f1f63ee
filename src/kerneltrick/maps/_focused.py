"""Focused linear attention: powers that sharpen a feature vector and keep its length."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from kerneltrick._arrays import Array, constant, space, stop_gradient, tree
from kerneltrick.maps._base import FeatureMap, Sign
from kerneltrick.maps._declared import Operations


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Focused(FeatureMap):
    """φ(x) = ‖y‖ · yᵖ/‖yᵖ‖ with y = ReLU(x); Han et al. 2023 ("FLatten Transformer"), Eq. 5. m = d.

    The power p pulls φ(x) towards its largest coordinates without changing its length. p = 1 is
    ReLU. φ(x) is 0 where no coordinate of x is positive; the formula would be 0/0 there, so `prove`
    has no exact form of this map.
    """

    power: float = 3.0
    name: ClassVar[str] = "focused"
    flat_below_zero: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("power",)
    script: ClassVar[str] = """(x, { power }, n, d) => {
      const values = x.map(relu);
      for (let i = 0; i < n; i += 1) {
        const row = values.subarray(i * d, (i + 1) * d);
        const top = Math.max(...row);
        if (top === 0) continue;
        const length = Math.hypot(...row);
        const powers = row.map((y) => (y / top) ** power);
        const total = Math.hypot(...powers);
        powers.forEach((y, c) => (row[c] = (length * y) / total));
      }
      return plainFeatures(values, d);
    }"""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not (math.isfinite(self.power) and self.power >= 1):
            raise ValueError(f"focused needs a finite power ≥ 1, not {self.power!r}")

    @property
    def sign(self) -> Sign:
        return "non-negative"

    def operations(self, width: Any) -> Operations:
        # The squares of y and of yᵖ, and the factor of each feature; ReLU, division and power.
        return Operations(width, 3 * width, 6 * width, 3 * width + 2)

    def feature_names(self, inputs: Sequence[str]) -> list[str]:
        return [f"{self.name}({x})" for x in inputs]

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        xp = space(x)
        y = xp.maximum(x, constant(np.zeros(()), x))
        top = stop_gradient(xp.max(y, axis=-1, keepdims=True))
        y = y / xp.where(top == 0, xp.ones_like(top), top)  # no power overflows
        powers = y**self.power

        def length(z: Array) -> Array:
            """‖z‖, or 1 for a vector of zeros, whose length has no derivative."""
            total = xp.sum(z * z, axis=-1, keepdims=True)
            return xp.sqrt(xp.where(total == 0, xp.ones_like(total), total))

        return powers * (top * length(y) / length(powers))
