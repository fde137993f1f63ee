"""The map without features: beside it every weight is exact."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

from kerneltrick._arrays import Array, space, tree
from kerneltrick.maps._base import CoreRecipe, FeatureMap, Fused, Sign
from kerneltrick.maps._declared import KernelForm, Operations


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Softmax(FeatureMap):
    """No features, m = 0: far tokens do not count. With a window it is the window alone.

    Without one every token is near, and attention is softmax attention; its state is then all keys
    and values. e^{q·k} has no finite feature map, so `phi` is empty and `kernel` is in closed form.
    """

    name: ClassVar[str] = "softmax"
    approximates_softmax: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    has_features: ClassVar[bool] = False
    script: ClassVar[str] = "() => plainFeatures(new Float64Array(0), 0)"

    @property
    def sign(self) -> Sign:
        return "positive"

    def dim(self, d: int) -> int:
        return 0

    def unit(self, d: int) -> float:
        return 1.0

    @property
    def kernel_form(self) -> KernelForm:
        return KernelForm("it has no features: its kernel is e^{q·k} by definition")

    def operations(self, width: Any) -> Operations:
        return Operations(0, 0, 0, 0)

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        return x[..., :0]

    def kernel(
        self,
        q: Array,
        k: Array,
        q_positions: Array | None = None,
        k_positions: Array | None = None,
    ) -> Array:
        return space(q).exp(q @ k.mT)

    def fused(self) -> Fused:
        return Fused(self.name)

    def core_recipe(self, d: int, columns: int) -> CoreRecipe:
        return CoreRecipe("given")
