"""Random features for e^{q·k} (Performer, FAVOR+)."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, ClassVar

import numpy as np

from kerneltrick._arrays import Array, astype, constant, space, stop_gradient, tree, wide
from kerneltrick.maps._base import (
    CoreRecipe,
    FeatureMap,
    Features,
    Fused,
    Sign,
    one_of,
    positive_int,
    seeded,
)
from kerneltrick.maps._declared import KernelForm, Operations

Projection = np.ndarray[Any, np.dtype[np.float64]]


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Favor(FeatureMap):
    """Unbiased random features of e^{q·k}; Choromanski et al. 2021, Lemma 1 and 2.

    kind="positive":   exp(ω·x − ‖x‖²/2)/√m                    m draws of ω
    kind="hyperbolic": the same with both ω and −ω, /√m         m/2 draws
    kind="trig":       e^{‖x‖²/2}(cos ω·x, sin ω·x)/√(m/2)     m/2 draws; can be negative

    ω ~ N(0, I) is drawn once from `seed` and kept in float64; `orthogonal` draws come in Haar
    distributed blocks with independent χ_d lengths, so each ω alone is still exactly N(0, I).
    """

    features: int = 256
    kind: str = "positive"
    seed: int = 0
    orthogonal: bool = True
    name: ClassVar[str] = "favor"
    approximates_softmax: ClassVar[bool] = True
    exact: ClassVar[bool] = False
    shown: ClassVar[tuple[str, ...]] = ("features",)
    script: ClassVar[str] = """(x, { kind }, n, d, projection) => {
      if (!projection) return null;
      const draws = projection.length / d;
      const projected = project(x, projection, n, d);
      const norms = halfNorms(x, n, d);
      if (kind === "trig") {
        const values = paired(projected, n, draws, Math.cos, Math.sin);
        return { values, m: 2 * draws, log: norms.map((half) => half - Math.log(draws) / 2) };
      }
      const both = kind === "hyperbolic";
      const m = both ? 2 * draws : draws;
      const shift = norms.map((half) => -half - Math.log(m) / 2);
      return exponentials(both ? mirrored(projected, n, draws) : projected, n, m, shift);
    }"""

    def __post_init__(self) -> None:
        super().__post_init__()
        positive_int("favor", "features", self.features)
        one_of("favor", "kind", self.kind, ("positive", "hyperbolic", "trig"))
        if isinstance(self.seed, bool) or not isinstance(self.seed, int) or self.seed < 0:
            raise ValueError(f"favor needs seed to be a whole number ≥ 0, not {self.seed!r}")
        if self.kind != "positive" and self.features % 2:
            raise ValueError(
                f"favor kind={self.kind} makes features in pairs: features must be even, "
                f"not {self.features}"
            )

    @property
    def sign(self) -> Sign:
        return "any" if self.kind == "trig" else "positive"

    def dim(self, d: int) -> int:
        return self.features

    def unit(self, d: int) -> float:
        return 1.0

    @property
    def kernel_form(self) -> KernelForm:
        why = "each ω is N(0, I), so the mean of φ(q)·φ(k) over draws is e^{q·k}"
        return KernelForm(f"{why} (Choromanski et al. 2021, Lemma 1)")

    def operations(self, width: Any) -> Operations:
        m = self.features
        products = self.draws * width + width  # ω·x for each draw, and ‖x‖²
        backward = self.draws * width + 2 * width  # ω is a constant
        if self.kind == "trig":
            return Operations(m, products, backward, 2 * m + 1)  # cos or sin, division; ½ of ‖x‖²
        signs = self.draws if self.kind == "hyperbolic" else 0
        # maximum, difference, exp, division; ½ of ‖x‖² and its difference to the maximum
        return Operations(m, products, backward, 4 * m + 2 + signs)

    @property
    def draws(self) -> int:
        """How many ω there are: m, or m/2 where each gives two features."""
        return self.features if self.kind == "positive" else self.features // 2

    def projection(self, d: int) -> Projection:
        """The draws ω, (draws, d) in float64."""
        return draw_projection(self.draws, d, self.seed, self.orthogonal)

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        xp = space(x)
        features, log_scale = self.phi_query(x)
        return features * astype(xp.exp(log_scale), x.dtype)[..., None]

    def phi_query(self, x: Array, positions: Array | None = None) -> Features:
        projected = x @ constant(self.projection(x.shape[-1]), x).mT
        return random_features(x, projected, self.kind)

    def kernel(
        self,
        q: Array,
        k: Array,
        q_positions: Array | None = None,
        k_positions: Array | None = None,
    ) -> Array:
        return space(q).exp(q @ k.mT)

    def fused(self) -> Fused:
        return Fused(str(self))

    def core_recipe(self, d: int, columns: int) -> CoreRecipe:
        return CoreRecipe(f"favor_{self.kind}", self.draws, weight=self.projection(d).T)


def random_features(x: Array, projected: Array, kind: str = "positive") -> Features:
    """Features of x from its projections ω·x (..., n, draws), with the log-scale of each token.

    The largest exponent of each token is taken out on its own, never over the sequence: a maximum
    over the sequence would let the future change the past.
    """
    xp = space(x)
    exact = wide(x).hi  # an error in ‖x‖²/2 is a relative error of every weight
    half_norm = xp.sum(exact * exact, axis=-1) / 2
    if kind == "trig":
        both = xp.concat([xp.cos(projected), xp.sin(projected)], axis=-1)
        return both / math.sqrt(projected.shape[-1]), half_norm
    if kind == "hyperbolic":
        projected = xp.concat([projected, -projected], axis=-1)
    top = stop_gradient(xp.max(projected, axis=-1, keepdims=True))
    features = xp.exp(projected - top) / math.sqrt(projected.shape[-1])
    return features, astype(top[..., 0], half_norm.dtype) - half_norm


@functools.lru_cache(maxsize=64)
def draw_projection(draws: int, d: int, seed: int, orthogonal: bool = True) -> Projection:
    """`draws` vectors ω ~ N(0, I_d), as rows; orthogonal within blocks of d if asked.

    The Q of a QR factorisation is Haar distributed only once its columns are multiplied by
    sign(diag R); the lengths of the rows are independent χ_d draws. Without either the estimate
    of e^{q·k} is biased.
    """
    rng = seeded("favor", seed)
    if not orthogonal:
        projection = rng.standard_normal((draws, d))
    else:
        blocks = []
        for _ in range(-(-draws // d)):
            q, r = np.linalg.qr(rng.standard_normal((d, d)))
            q = q * np.sign(np.diagonal(r))
            lengths = np.linalg.norm(rng.standard_normal((d, d)), axis=1)
            blocks.append(q * lengths[:, None])
        projection = np.concatenate(blocks)[:draws]
    projection.flags.writeable = False  # shared by every map with these parameters
    return projection
