"""Exact maps of polynomials in q·k: one feature per monomial, the √ of its coefficient in front."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections import Counter
from collections.abc import Iterator
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np

from kerneltrick._arrays import Array, constant, index_dtype, space, tree
from kerneltrick.maps._base import CoreRecipe, FeatureMap, Fused, Sign, positive_int
from kerneltrick.maps._declared import KernelForm, Monomial, Operations, binomial, decimal

HIGHEST = 170  # 170! is the largest factorial in float64

IndexTable = np.ndarray[Any, np.dtype[np.int64]]
Coefficients = np.ndarray[Any, np.dtype[np.float64]]


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Poly(FeatureMap):
    """The exact map of (q·k + c)ᵖ.

    φ_α(x) = √(p!/(α₀!α₁!…α_d!)) · c^{α₀/2} · ∏xᵢ^{αᵢ} over all α with Σα = p, so m = C(d+p, p), or
    C(d+p−1, p) for c = 0. For p = 2, c = 1: 1, √2·xᵢ, xᵢ², √2·xᵢxⱼ (i < j).
    """

    degree: int = 2
    constant: float = 1.0
    name: ClassVar[str] = "poly"
    shown: ClassVar[tuple[str, ...]] = ("degree",)
    kernel_script: ClassVar[str] = "(t, { degree, constant }) => (t + constant) ** degree"
    forms_features: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_degree("poly", "degree", self.degree)
        if not (math.isfinite(self.constant) and self.constant >= 0):
            raise ValueError(
                f"poly needs a finite constant ≥ 0, not {self.constant!r}: with a negative one "
                f"(q·k + c)ᵖ has no real feature map"
            )

    @property
    def sign(self) -> Sign:
        return "non-negative" if self.degree % 2 == 0 else "any"

    def dim(self, d: int) -> int:
        variables = d + 1 if self.constant > 0 else d
        return math.comb(variables + self.degree - 1, self.degree)

    @property
    def kernel_form(self) -> KernelForm:
        why = "by the multinomial theorem its features give (q·k + c)ᵖ"
        return KernelForm(why, {self.degree: Fraction(1)}, decimal(self.constant))

    def monomials(self, d: int) -> Iterator[Monomial]:
        c, top = decimal(self.constant), math.factorial(self.degree)
        first = 0 if self.constant > 0 else 1
        for row in itertools.combinations_with_replacement(range(first, d + 1), self.degree):
            bottom = math.prod(math.factorial(a) for a in Counter(row).values())
            yield Monomial(Fraction(top, bottom) * c ** row.count(0), row)

    def operations(self, width: Any) -> Operations:
        top = width + self.degree - (0 if self.constant > 0 else 1)
        m = binomial(top, self.degree)
        return Operations(m, self.degree * m, (2 * self.degree - 1) * m, 0)

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        first = math.sqrt(self.constant) if self.constant > 0 else None
        index, multinomial = _monomials(x.shape[-1], self.degree, first is not None)
        return _products(x, first, index, np.sqrt(multinomial))

    def kernel(
        self,
        q: Array,
        k: Array,
        q_positions: Array | None = None,
        k_positions: Array | None = None,
    ) -> Array:
        return (q @ k.mT + self.constant) ** self.degree

    def fused(self) -> Fused | None:
        return Fused(str(self)) if self.degree == 2 else None

    def core_recipe(self, d: int, columns: int) -> CoreRecipe:
        c = self.constant  # (t + c)² = c² + 2c·t + t²
        return CoreRecipe("quadratic", numbers={"c0": c * c, "c1": 2 * c, "c2": 1.0})


@tree
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Taylor(FeatureMap):
    """The exact map of Σ_{r≤p} (q·k)ʳ/r!, the start of the series of e^{q·k}.

    Arora et al. 2024 ("Based") use order 2 after projecting q and k to d′ = 16 dimensions; the
    projection is not part of the map. φ_α(x) = ∏xᵢ^{αᵢ}/√(αᵢ!), m = C(d+p, p). Even orders are
    positive: 1 + t + t²/2 = ½((1+t)² + 1) ≥ ½. Odd orders can have any sign.
    """

    order: int = 2
    name: ClassVar[str] = "taylor"
    approximates_softmax: ClassVar[bool] = True
    shown: ClassVar[tuple[str, ...]] = ("order",)
    kernel_script: ClassVar[str] = """(t, { order }) => {
      let total = 1;
      for (let r = order; r > 0; r -= 1) total = 1 + (t / r) * total;
      return total;
    }"""
    forms_features: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_degree("taylor", "order", self.order)

    @property
    def sign(self) -> Sign:
        return "positive" if self.order % 2 == 0 else "any"

    def dim(self, d: int) -> int:
        return math.comb(d + self.order, self.order)

    @property
    def kernel_form(self) -> KernelForm:
        why = "by the multinomial theorem its features give Σ (q·k)ʳ/r!"
        return KernelForm(why, {r: Fraction(1, math.factorial(r)) for r in range(self.order + 1)})

    def monomials(self, d: int) -> Iterator[Monomial]:
        for row in itertools.combinations_with_replacement(range(d + 1), self.order):
            powers = Counter(i for i in row if i)
            bottom = math.prod(math.factorial(a) for a in powers.values())
            yield Monomial(Fraction(1, bottom), row)

    def operations(self, width: Any) -> Operations:
        m = binomial(width + self.order, self.order)
        return Operations(m, self.order * m, (2 * self.order - 1) * m, 0)

    def unit(self, d: int) -> float:
        return 1.0

    def phi(self, x: Array, positions: Array | None = None) -> Array:
        index, multinomial = _monomials(x.shape[-1], self.order, True)
        # p!/(α₀! ∏αᵢ!) without its p!/α₀! is 1/∏αᵢ!, the coefficient of the monomial in Σ tʳ/r!.
        ones = (index == 0).sum(axis=1)
        top = math.factorial(self.order)
        drop = np.array([float(top // math.factorial(a)) for a in ones.tolist()])
        return _products(x, 1.0, index, np.sqrt(multinomial / drop))

    def kernel(
        self,
        q: Array,
        k: Array,
        q_positions: Array | None = None,
        k_positions: Array | None = None,
    ) -> Array:
        t = q @ k.mT
        total = 1 + t / self.order
        for r in range(self.order - 1, 0, -1):  # Horner: 1 + t(1 + t/2(1 + t/3(…)))
            total = 1 + t / r * total
        return total

    def fused(self) -> Fused | None:
        return Fused(str(self)) if self.order == 2 else None

    def core_recipe(self, d: int, columns: int) -> CoreRecipe:
        return CoreRecipe("quadratic", numbers={"c0": 1.0, "c1": 1.0, "c2": 0.5})


def _check_degree(owner: str, name: str, value: Any) -> None:
    positive_int(owner, name, value)
    if value > HIGHEST:
        raise ValueError(
            f"{owner} needs {name} ≤ {HIGHEST}, not {value}: the factorials of its coefficients "
            f"exceed float64"
        )


@functools.lru_cache(maxsize=64)
def _monomials(d: int, degree: int, with_constant: bool) -> tuple[IndexTable, Coefficients]:
    """All products of `degree` variables as an index table (m, degree), with p!/∏α!.

    Variable 0 is the constant, if there is one; then come the d coordinates.
    """
    variables = range(d + 1 if with_constant else d)
    rows = list(itertools.combinations_with_replacement(variables, degree))
    index = np.array(rows, dtype=np.int64).reshape(len(rows), degree)
    top = math.factorial(degree)
    counts = [top // math.prod(math.factorial(a) for a in Counter(row).values()) for row in rows]
    return index, np.array(counts, dtype=np.float64)


def _products(
    x: Array, first: float | None, index: IndexTable, coefficients: Coefficients
) -> Array:
    xp = space(x)
    if first is not None:
        x = xp.concat([xp.zeros_like(x[..., :1]) + first, x], axis=-1)
    columns = constant(index, x, index_dtype(x))
    y = constant(coefficients, x)
    for factor in range(index.shape[1]):
        y = y * xp.take(x, columns[:, factor], axis=-1)
    return y
