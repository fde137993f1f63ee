"""cosFormer: ReLU features reweighted by the distance of the tokens."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, ClassVar

from kerneltrick._arrays import Array, space, tree
from kerneltrick.maps._base import (
    CoreRecipe,
    FeatureMap,
    Fused,
    Sign,
    default_positions,
    positive_int,
)
from kerneltrick.maps._declared import Operations
from kerneltrick.maps._elementwise import Relu


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Cosformer(FeatureMap):
    """φ(x, i) = ReLU(x)·(cos πi/2N, sin πi/2N), so sim = ReLU(q)·ReLU(k)·cos(π(i−j)/2N).

    Qin et al. 2022, Eq. 10; their M is our `horizon` N. m = 2d. Nothing to do with cosine
    similarity. Non-negative while |i − j| ≤ N; longer sequences are refused.
    """

    horizon: int
    name: ClassVar[str] = "cosformer"
    uses_positions: ClassVar[bool] = True
    flat_below_zero: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("horizon",)
    script: ClassVar[str] = """(x, { horizon }, n, d) => {
      const angle = (i) => (i * Math.PI) / (2 * horizon);
      const cosine = (y, i) => relu(y) * Math.cos(angle(i));
      const sine = (y, i) => relu(y) * Math.sin(angle(i));
      return plainFeatures(paired(x, n, d, cosine, sine), 2 * d);
    }"""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int("cosformer", "horizon", self.horizon)

    @property
    def sign(self) -> Sign:
        return "non-negative"

    def dim(self, d: int) -> int:
        return 2 * d

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        xp = space(x)
        angle = default_positions(x, positions, 4 * self.horizon) * (math.pi / (2 * self.horizon))
        y = Relu().phi(x)
        return xp.concat([y * xp.cos(angle), y * xp.sin(angle)], axis=-1)

    def kernel(
        self,
        q: Array,
        k: Array,
        q_positions: Array | None = None,
        k_positions: Array | None = None,
    ) -> Array:
        xp = space(q)
        i, j = default_positions(q, q_positions), default_positions(k, k_positions)
        relu = Relu()
        return relu.phi(q) @ relu.phi(k).mT * xp.cos((i - j.mT) * (math.pi / (2 * self.horizon)))

    def fused(self) -> Fused:
        return Fused(str(self))

    def core_recipe(self, d: int, columns: int) -> CoreRecipe:
        return CoreRecipe("cosformer", numbers={"horizon": float(self.horizon)})

    def operations(self, width: Any) -> Operations:
        # ReLU of each coordinate; cosine and sine of the position.
        return Operations(2 * width, 2 * width, 2 * width, width + 2)

    def check_positions(self, first: int, last: int) -> None:
        if last - first > self.horizon:
            raise ValueError(
                f"{self} weights tokens by cos(π(i−j)/2N), which is negative beyond the horizon "
                f"N = {self.horizon}, but the tokens here are up to {last - first} apart; "
                f"use cosformer:horizon={last - first} or larger"
            )
