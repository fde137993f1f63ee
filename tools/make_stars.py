"""Measure the feature maps on lab 03's data and write the star table into its pages.

    python tools/make_stars.py           write docs/03_feature_maps.md and the README of lab 03
    python tools/make_stars.py --check   exit 1 if one of them is not up to date
    python tools/make_stars.py --print   print the table

As in lab 03, Q, K and V are 100×64 with independent N(0, 1) entries in float32. All numbers are
averages over the seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable

import numpy as np
from generated import ROOT, page_with, update

import kerneltrick as kt
from kerneltrick.analysis import analyze_map

PAGES = ("docs/03_feature_maps.md", "labs/lab03_feature_maps/README.md")
BEGIN, END = "<!-- stars:begin -->", "<!-- stars:end -->"

Array = np.ndarray
Attention = Callable[[Array, Array, Array, kt.maps.FeatureMap], Array]

N, D = 100, 64
SEEDS = range(20)
GROWTH = [2**i for i in range(11)]  # 1 … 1024
GROWTH_SEEDS = range(4)

MAPS = {
    "ELU+1": "elu",
    "ReLU": "relu",
    "Squared ReLU": "relu2",
    "exp": "exp",
    "Random features, m = 64": "favor:features=64",
    "Random features, m = 256": "favor:features=256",
    "Random features, m = 1024": "favor:features=1024",
    "Random features, m = 4096": "favor:features=4096",
    "Taylor, order 2": "taylor:order=2",
}


@dataclasses.dataclass(frozen=True)
class Row:
    """One map, averaged over the seeds, against softmax with scale 1/√d and with scale 1."""

    name: str
    features: int
    sign: str
    scaled: Fit
    unscaled: Fit
    cost: float  # multiply-adds per token, relative to ELU+1
    growth: int  # factor by which q and k may grow before the plain float32 formula fails
    carried: int  # the same for kerneltrick.linear_attention, which keeps a log-scale


@dataclasses.dataclass(frozen=True)
class Fit:
    correlation: float
    mse: float
    output_error: float


def data(seed: int) -> Array:
    """Draw Q, K and V from a stream that is independent of projections drawn from `seed`."""
    return np.random.default_rng([3, seed]).standard_normal((3, N, D), dtype=np.float32)


def chosen(text: str, seed: int) -> kt.maps.FeatureMap:
    return kt.maps.get(f"{text},seed={seed}" if text.startswith("favor") else text)


def uniform(x: Array) -> Array:
    """Return φ = 1, which gives every key the same weight."""
    return np.ones_like(x[..., :1])


def fit(text: str | None, softmax_scale: float) -> Fit:
    found = []
    for seed in SEEDS:
        q, k, v = data(seed)
        feature_map = kt.maps.get(uniform) if text is None else chosen(text, seed)
        scale = softmax_scale if feature_map.approximates_softmax else 1.0
        quality = analyze_map(q, k, v, feature_map, scale=scale, softmax_scale=softmax_scale)
        weights = quality.weights
        found.append((weights.correlation, weights.mse, quality.output_relative_error))
    return Fit(*np.mean(found, axis=0).tolist())


def multiply_adds(feature_map: kt.maps.FeatureMap) -> int:
    """Count per token: writing and reading U and Z, and φ if it needs products."""
    m = feature_map.dim(D)
    attention = 2 * m * D + 2 * m
    if isinstance(feature_map, kt.maps.Favor):
        return attention + 2 * m * D
    if isinstance(feature_map, kt.maps.Taylor):
        return attention + 2 * m * feature_map.order
    return attention


def tolerated_growth(text: str, attention: Attention) -> int:
    """Return the factor by which q and k may grow before float32 is 1 % off, on the worst seed."""
    worst = GROWTH[-1]
    for seed in GROWTH_SEEDS:
        q, k, v = data(seed)
        feature_map = chosen(text, seed)
        largest = 0
        for growth in (g for g in GROWTH if g <= worst):
            inputs = (q * np.float32(growth), k * np.float32(growth), v)
            exact = carried(*(x.astype(np.float64) for x in inputs), feature_map)
            with np.errstate(all="ignore"):
                error = np.linalg.norm(attention(*inputs, feature_map) - exact)
            if not error <= 0.01 * np.linalg.norm(exact):
                break
            largest = growth
        worst = min(worst, largest)
    return worst


def plain(q: Array, k: Array, v: Array, feature_map: kt.maps.FeatureMap) -> Array:
    """Evaluate φ(Q)(φ(K)ᵀV) / φ(Q)(φ(K)ᵀ1) literally."""
    root = np.asarray(math.sqrt(feature_map.default_scale(D)), dtype=q.dtype)
    phi_q, phi_k = feature_map.phi(q * root), feature_map.phi(k * root)
    return phi_q @ (phi_k.T @ v) / (phi_q @ phi_k.sum(axis=0))[:, None]


def carried(q: Array, k: Array, v: Array, feature_map: kt.maps.FeatureMap) -> Array:
    return kt.linear_attention(q, k, v, feature_map, on_zero="nan")


def measure() -> tuple[list[Row], Fit, Fit]:
    """Return one row per map, and the fit of uniform weights to both kinds of softmax."""
    cheapest = multiply_adds(kt.maps.get("elu"))
    rows = []
    for name, text in MAPS.items():
        feature_map = kt.maps.get(text)
        rows.append(
            Row(
                name,
                feature_map.dim(D),
                feature_map.sign,
                fit(text, 1 / math.sqrt(D)),
                fit(text, 1.0),
                multiply_adds(feature_map) / cheapest,
                tolerated_growth(text, plain),
                tolerated_growth(text, carried),
            )
        )
    return rows, fit(None, 1 / math.sqrt(D)), fit(None, 1.0)


def gain(found: Fit, nothing: Fit) -> float:
    """Return the share of the MSE of uniform weights that a map removes (negative if it adds)."""
    return 1 - found.mse / nothing.mse


def stars(count: int) -> str:
    return "⭐" * min(5, max(1, count))


def times(growth: int) -> str:
    return f"≥ {growth}×" if growth == GROWTH[-1] else f"{growth}×"


def percent(share: float) -> str:
    """Format a share with its sign and up to three digits: +79 %, +0.4 %, −423 %."""
    digits = 0 if abs(share) >= 0.1 else 1
    return f"{100 * share:+.{digits}f} %".replace("-", "−")


def fit_stars(found: Fit, nothing: Fit) -> str:
    return stars(1 + math.ceil(4 * gain(found, nothing)))


def speed_stars(row: Row) -> str:
    return stars(5 - math.ceil(math.log(row.cost, 4)))


def stability_stars(row: Row) -> str:
    return stars(1 + sum(row.growth >= limit for limit in (4, 16, 64, 1024)))


def tables(rows: list[Row], nothing: Fit, nothing_unscaled: Fit) -> str:
    rated = [("Feature map", "m", "Weights", "Softmax approx", "Speed", "Stability")]
    metrics = ("MSE·10⁴", "Correlation", "Output error")
    numbers = [("Feature map", *metrics, "s = 1: approx", *metrics)]
    for row in rows:
        rated.append(
            (
                row.name,
                str(row.features),
                row.sign,
                f"{fit_stars(row.scaled, nothing)} {percent(gain(row.scaled, nothing))}",
                f"{speed_stars(row)} {row.cost:.1f}×",
                f"{stability_stars(row)} {times(row.growth)} (carried: {times(row.carried)})",
            )
        )
        unscaled = percent(gain(row.unscaled, nothing_unscaled))
        numbers.append(
            (
                row.name,
                *figures(row.scaled),
                f"{fit_stars(row.unscaled, nothing_unscaled)} {unscaled}",
                *figures(row.unscaled),
            )
        )
    numbers.append(("*uniform weights*", *figures(nothing), "", *figures(nothing_unscaled)))
    return f"{markdown(rated)}\n\n{NUMBERS}\n\n{markdown(numbers)}"


def figures(found: Fit) -> tuple[str, str, str]:
    correlation = "none" if math.isnan(found.correlation) else f"{found.correlation:.3f}"
    return f"{1e4 * found.mse:.3g}", correlation, f"{found.output_error:.2f}"


def markdown(lines: list[tuple[str, ...]]) -> str:
    lines = [lines[0], ("---",) * len(lines[0]), *lines[1:]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


NUMBERS = """\
These are the numbers behind "Softmax approx", for softmax with s = 1/√d. The last four columns are
for softmax without a scale (s = 1). The output error is ‖AV − SV‖/‖SV‖."""

RULES = f"""\
*Measured by `make stars` (`tools/make_stars.py`) on lab 03's data: n = {N}, d = {D}. Q, K, V have
independent N(0, 1) entries in float32. All numbers are averages over {len(SEEDS)} seeds.*

- **Softmax approx** is the share of the MSE of uniform weights (attention that looks at nothing)
  that the map removes. A map that removes nothing, or has a larger MSE, gets one star. A map gets
  two stars up to a quarter, three up to a half, four up to three quarters, and five above that.
- **Speed** is the number of multiply-adds per token relative to ELU+1. It counts U, Z, reading
  them, and φ if φ needs products. 1× gets five stars, and every factor of 4, rounded up, costs one.
- **Stability** is how many times larger q and k may become before float32 is 1 % wrong. It is
  measured on the worst of {len(GROWTH_SEEDS)} seeds, with the plain formula
  φ(Q)(φ(K)ᵀV) / φ(Q)(φ(K)ᵀ1). "Carried" is the same for `kerneltrick.linear_attention`, which
  carries a log-scale. A map gets two stars from 4×, three from 16×, four from 64×, and five from
  {GROWTH[-1]}× (the largest factor tried).
"""


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Measure the maps and write the star table.")
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    group.add_argument("--print", action="store_true", help="print the table without writing")
    arguments = parser.parse_args(argv)
    block = f"{tables(*measure())}\n\n{RULES}"
    if arguments.print:
        print(block)
        return 0
    pages = {ROOT / name: (ROOT / name).read_text(encoding="utf-8") for name in PAGES}
    wanted = {path: page_with(page, block, BEGIN, END) for path, page in pages.items()}
    return update(wanted, arguments.check, "stars")


if __name__ == "__main__":
    raise SystemExit(main())
