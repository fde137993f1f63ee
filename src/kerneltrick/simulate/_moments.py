"""Measure the mean and variance of q·k for growing d, with and without the factor 1/√d."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kerneltrick.simulate._check import finite, fits, positive, whole, wholes

WIDTHS = tuple(2**p for p in range(11))
_BLOCK = 2**20  # numbers drawn at once


class MomentRow(NamedTuple):
    """The moments of q·k for vectors of width d, with theory E = dμ² and Var = d(σ⁴ + 2μ²σ²)."""

    d: int
    mean: float
    theory_mean: float
    variance: float
    theory_variance: float
    standard_error: float  # of the measured variance, from the measured fourth moment

    @property
    def scaled_variance(self) -> float:
        """The measured Var[q·k/√d]."""
        return self.variance / self.d

    @property
    def theory_scaled_variance(self) -> float:
        """Var[q·k/√d] = σ⁴ + 2μ²σ² for every d."""
        return self.theory_variance / self.d

    @property
    def z_score(self) -> float:
        """The distance of the measured variance from theory in standard errors."""
        return (self.variance - self.theory_variance) / self.standard_error


class Moments(NamedTuple):
    mu: float
    sigma: float
    draws: int
    seed: int
    rows: tuple[MomentRow, ...]


def moments(
    widths: Sequence[int] = WIDTHS,
    *,
    mu: float = 0.0,
    sigma: float = 1.0,
    draws: int = 20_000,
    seed: int = 0,
) -> Moments:
    """Measure q·k of `draws` pairs with independent N(μ, σ²) coordinates, for every width d.

    q·k is a sum of d independent products, each with mean μ² and variance
    E[q²]E[k²] − μ⁴ = (σ² + μ²)² − μ⁴ = σ⁴ + 2μ²σ².

    >>> row = moments([64], draws=2000).rows[0]
    >>> row.theory_variance, row.theory_scaled_variance, abs(row.z_score) < 4
    (64.0, 1.0, True)
    """
    who = "moments"
    widths = wholes(who, "widths", widths)
    mu, sigma = finite(who, "mu", mu), positive(who, "sigma", sigma)
    if abs(mu) > 1e6 * sigma:
        raise ValueError(f"{who} needs |mu| ≤ 10⁶·sigma, or rounding hides the deviations from mu")
    draws, seed = whole(who, "draws", draws, 2), whole(who, "seed", seed, 0)
    fits(who, draws)
    fits(who, max(widths))
    rows = tuple(_row(d, mu, sigma, draws, seed) for d in widths)
    return Moments(mu, sigma, draws, seed, rows)


def _row(d: int, mu: float, sigma: float, draws: int, seed: int) -> MomentRow:
    rng = np.random.default_rng([seed, d])
    products = np.empty(draws)
    step = max(1, _BLOCK // d)
    for start in range(0, draws, step):
        count = min(step, draws - start)
        q, k = mu + sigma * rng.standard_normal((2, count, d))
        products[start : start + count] = np.einsum("id,id->i", q, k)
    variance = float(products.var(ddof=1))
    fourth = float(np.mean((products - products.mean()) ** 4))
    return MomentRow(
        d=d,
        mean=float(products.mean()),
        theory_mean=d * mu**2,
        variance=variance,
        theory_variance=d * (sigma**4 + 2 * mu**2 * sigma**2),
        standard_error=math.sqrt(max(fourth - variance**2, 0.0) / draws),
    )
