"""What changes when a map replaces softmax: weights, outputs and numerical stability."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import Array
from kerneltrick.analysis._blocks import Block, MapComparison, blocks, check_problem, repeated
from kerneltrick.analysis._result import Result
from kerneltrick.analysis._sampled import (
    float32_error,
    query_gradients,
    range_losses,
    rank_correlation,
)
from kerneltrick.analysis._weights import WeightComparison, WeightTotals, ratio
from kerneltrick.attention import Dial, State, select


@dataclasses.dataclass(frozen=True)
class MapQuality(Result):
    """A map compared with softmax on given q, k, v, over all heads together.

    Rows where the map has no output (its normaliser is 0) are counted in `undefined_rows` and
    excluded from everything except `smallest_normalizer`, which is 0 if there is such a row.
    """

    weights: WeightComparison
    rank_correlation: float  # mean over rows of Spearman's ρ: does the map keep the order?
    output_relative_error: float  # ‖O − O_softmax‖ / ‖O_softmax‖ (Frobenius)
    output_energy: float  # ‖O_softmax‖² over the rows that enter the error
    output_cosine: float  # mean over rows of cos(o, o_softmax), without rows of zeros
    smallest_normalizer: float  # min over rows of |Σ_j φ(q)·φ(k_j)|, in the units of the map
    condition_number: float  # max over rows of Σ_j |A_j| / |Σ_j A_j|; 1 if no weight is negative
    negative_fraction: float  # share of the weights below 0
    overflows: int  # features of φ that overflow float32
    underflows: int  # features of φ that are 0 in float32 but not in float64
    float32_error: float  # ‖O₃₂ − O₆₄‖ / ‖O₆₄‖ of linear_attention
    gradient_ratio: float  # norm of the gradient to the queries, relative to softmax's
    dead_gradients: float  # share of that gradient that is exactly 0
    state_bytes: int  # U and Z of all heads in float64, for any n

    @property
    def undefined_rows(self) -> int:
        """Number of rows without an output."""
        return self.weights.undefined_rows


def analyze_map(
    q: Array,
    k: Array,
    v: Array,
    feature_map: maps.MapLike | Dial,
    *,
    causal: bool = False,
    scale: float | None = None,
    softmax_scale: float | None = None,
    rows: int | None = None,
    seed: int = 0,
) -> MapQuality:
    """Compare weights, outputs and stability of a map with softmax(s·QKᵀ)V, by default s = 1/√d.

    q, k, v are (..., heads, n, d) or (n, d) arrays of any library. The computation uses NumPy in
    float64, `rows` rows of weights at a time. Above n = 2048 it uses float32, and the rank
    correlation and the float32 range use 512 random rows (chosen by `seed`) in float64. Gradients
    always use 16 rows.

    >>> import numpy as np
    >>> from kerneltrick import analysis
    >>> q, k, v = np.random.default_rng(0).standard_normal((3, 2, 200, 16))
    >>> quality = analysis.analyze_map(q, k, v, "elu", causal=True)
    >>> quality.undefined_rows, quality.negative_fraction, quality.state_bytes
    (0, 0.0, 4352)
    >>> analysis.analyze_map(q, k, v, "identity").condition_number > 100
    True
    """
    problem = check_problem("analyze_map", q, k, v, feature_map, causal, scale, softmax_scale)
    weights, outputs, stability = WeightTotals(), OutputTotals(problem), _StabilityTotals()
    for block in blocks(problem, rows):
        weights.add(block)
        outputs.add(block)
        stability.add(block)
    overflows, underflows = range_losses(problem, seed)
    gradient_ratio, dead_gradients = query_gradients(problem, seed)
    return MapQuality(
        weights=weights.result(),
        rank_correlation=rank_correlation(problem, seed),
        output_relative_error=outputs.relative_error(),
        output_energy=outputs.size,
        output_cosine=ratio(outputs.cosines, outputs.directed),
        smallest_normalizer=stability.smallest(),
        condition_number=stability.condition,
        negative_fraction=ratio(stability.negative, stability.entries),
        overflows=overflows,
        underflows=underflows,
        float32_error=float32_error(problem),
        gradient_ratio=gradient_ratio,
        dead_gradients=dead_gradients,
        state_bytes=state_bytes(
            Dial(problem.rule.feature_map, problem.rule.window, problem.rule.sinks),
            problem.k,
            problem.v,
            problem.k.shape[2],
        ),
    )


def state_bytes(dial: Dial, k: Array, v: Array, n: int) -> int:
    """Return the bytes of state after n tokens: sums, tokens in the window, sinks.

    For `softmax` without a window these are the keys and values of all n tokens.
    """
    if dial.by_head:
        size = 0
        for group in dial.groups(k.shape[-3]):
            own_k, own_v = select(k, group.heads, -3), select(v, group.heads, -3)
            size += state_bytes(group.dial, own_k, own_v, n)
        return size
    token = (k.nbytes + v.nbytes) // k.shape[-2]
    if isinstance(dial.feature_map, maps.Softmax) and not (dial.window or dial.sinks):
        return int(n * token)
    window, sinks = dial.alike("state_bytes")
    kept = min(max(0, window - 1) + sinks, n)
    return int(State.empty(dial.feature_map, k, v).nbytes + kept * token)


class OutputTotals:
    """Sums of squared norms of outputs and of their errors, and of cosines of rows."""

    def __init__(self, problem: MapComparison) -> None:
        self.v, self.groups = problem.v, problem.groups
        self.error = self.size = self.cosines = 0.0
        self.directed = 0

    def add(self, block: Block) -> None:
        v = repeated(self.v[block.lead][:, : block.weights.shape[-1]], self.groups)
        ours = (block.weights @ v)[block.defined]
        softmax = (block.softmax @ v)[block.defined]
        self.error += float(np.sum((ours - softmax) ** 2))
        self.size += float(np.sum(softmax**2))
        norms = np.linalg.norm(ours, axis=-1) * np.linalg.norm(softmax, axis=-1)
        directed = norms > 0
        products = np.sum(ours * softmax, axis=-1)[directed]
        self.cosines += float(np.sum(products / norms[directed]))
        self.directed += int(directed.sum())

    def relative_error(self) -> float:
        return math.sqrt(ratio(self.error, self.size))


class _StabilityTotals:
    """How close normalisers came to 0."""

    def __init__(self) -> None:
        self.log_smallest = math.inf
        self.condition = math.nan
        self.negative = self.entries = 0

    def add(self, block: Block) -> None:
        self.log_smallest = min(self.log_smallest, float(block.log_normalizer.min()))
        absolute = np.abs(block.weights).sum(axis=-1)[block.defined]
        if absolute.size:
            self.condition = float(np.fmax(self.condition, absolute.max()))
        self.negative += int((block.weights < 0).sum())
        entries = block.entries
        self.entries += block.weights.size if entries is None else int(entries.sum())

    def smallest(self) -> float:
        with np.errstate(over="ignore"):
            return float(np.exp(self.log_smallest))
