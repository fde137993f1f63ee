"""The distance between the weights of a map and those of softmax."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from kerneltrick import maps
from kerneltrick._arrays import Array
from kerneltrick.analysis._blocks import Block, Floats, blocks, check_problem
from kerneltrick.analysis._result import Result
from kerneltrick.attention import Dial

TOP = 8


@dataclasses.dataclass(frozen=True)
class WeightComparison(Result):
    """The weights A of a map against the weights S of softmax, over all heads together.

    With causal attention, averages and the correlation are over the lower triangle j ≤ i only,
    because the zeros above the diagonal are the same in all causal matrices. Rows where the map has
    no output (its normaliser is 0) are counted in `undefined_rows` and excluded from the rest.
    """

    mse: float  # mean of (A − S)²
    max_diff: float  # max |A − S|
    correlation: float  # Pearson; NaN if either side is constant
    kl: float  # mean over rows of KL(S‖A); NaN with negative weights, ∞ at a weight of 0
    total_variation: float  # mean over rows of ½ Σ_j |A − S|
    top1_agreement: float  # share of rows whose largest weight is at the same key (first of equals)
    top8_agreement: float  # mean share of common keys among the 8 largest, rows of more than 8 keys
    entropy: float  # mean over rows of −Σ A log A; NaN with negative weights
    softmax_entropy: float  # the same for softmax
    rows: int
    undefined_rows: int


def compare_weights(
    q: Array,
    k: Array,
    feature_map: maps.MapLike | Dial,
    *,
    causal: bool = False,
    scale: float | None = None,
    softmax_scale: float | None = None,
    rows: int | None = None,
) -> WeightComparison:
    """Compare the normalised weights of a map with softmax(s·QKᵀ), s = `softmax_scale` or 1/√d.

    q and k are (..., heads, n, d) or (n, d) arrays of any library. The computation uses NumPy in
    float64, or in float32 above n = 2048. `scale` is that of `linear_attention`. Weights are formed
    `rows` rows at a time, never all at once. With causal attention, the correlation and the
    averages are over the lower triangle.

    >>> import numpy as np
    >>> from kerneltrick import analysis
    >>> q, k = 0.5 * np.random.default_rng(0).standard_normal((2, 200, 16))
    >>> near = analysis.compare_weights(q, k, "taylor:order=2")
    >>> far = analysis.compare_weights(q, k, "elu")
    >>> near.correlation > 0.999 > far.correlation, near.mse < far.mse
    (True, True)
    """
    problem = check_problem("compare_weights", q, k, k, feature_map, causal, scale, softmax_scale)
    total = WeightTotals()
    for block in blocks(problem, rows):
        total.add(block)
    return total.result()


class WeightTotals:
    """Sums over blocks that make up a `WeightComparison`."""

    def __init__(self) -> None:
        self.moments = _WeightMoments()
        self.squares = self.largest = self.variation = 0.0
        self.divergence = self.entropy = self.softmax_entropy = self.shared = 0.0
        self.hits = self.rows = self.undefined = self.long_rows = 0

    def add(self, block: Block) -> None:
        difference = block.weights - block.softmax
        if not block.defined.all():
            difference = np.where(block.defined[..., None], difference, 0.0)
        self.squares += float(np.vdot(difference, difference))
        size = np.abs(difference, out=difference)
        self.largest = max(self.largest, float(size.max()))
        self.variation += float(size.sum()) / 2
        same = block.weights.argmax(axis=-1) == block.softmax.argmax(axis=-1)
        self.hits += int((same & block.defined).sum())
        self.rows += block.defined.size
        self.undefined += int((~block.defined).sum())
        entries = block.entries
        if entries is None:
            self.moments.add(block.weights.ravel(), block.softmax.ravel())
        else:
            self.moments.add(block.weights[entries], block.softmax[entries])
        self._add_entropies(block)
        self._add_top8(block)

    def _add_entropies(self, block: Block) -> None:
        softmax, weights, defined = block.softmax, block.weights, block.defined
        own = np.einsum("hrc,hrc->hr", softmax, block.log_softmax)
        self.softmax_entropy -= float(own[defined].sum())
        if (weights < 0).any():
            self.divergence = self.entropy = math.nan
            return
        with np.errstate(divide="ignore"):
            logs = np.log(weights)
        positive = weights > 0
        if not positive.all():
            lost = (softmax > 0) & ~positive & defined[..., None]
            if block.allowed is not None:
                lost &= block.allowed
            if lost.any():
                self.divergence = self.divergence + math.inf
            logs[~positive] = 0.0
        cross = np.einsum("hrc,hrc->hr", softmax, logs)
        self.divergence += float((own - cross)[defined].sum())
        self.entropy -= float(np.einsum("hrc,hrc->hr", weights, logs)[defined].sum())

    def _add_top8(self, block: Block) -> None:
        count = block.weights.shape[-1]
        if count <= TOP:
            return
        weights, softmax = block.weights, block.softmax
        long = block.defined
        if block.allowed is not None:
            weights = np.where(block.allowed, weights, -math.inf)
            softmax = np.where(block.allowed, softmax, -math.inf)
            long = long & (block.allowed.sum(axis=-1) > TOP)
        best = [np.argpartition(x, count - TOP, axis=-1)[..., -TOP:] for x in (weights, softmax)]
        common = (best[0][..., :, None] == best[1][..., None, :]).any(axis=-1).sum(axis=-1)
        self.shared += float(common[long].sum()) / TOP
        self.long_rows += int(long.sum())

    def result(self) -> WeightComparison:
        defined = self.rows - self.undefined
        return WeightComparison(
            mse=ratio(self.squares, self.moments.count),
            max_diff=self.largest if defined else math.nan,
            correlation=self.moments.correlation(),
            kl=ratio(self.divergence, defined),
            total_variation=ratio(self.variation, defined),
            top1_agreement=ratio(self.hits, defined),
            top8_agreement=ratio(self.shared, self.long_rows),
            entropy=ratio(self.entropy, defined),
            softmax_entropy=ratio(self.softmax_entropy, defined),
            rows=self.rows,
            undefined_rows=self.undefined,
        )


class _WeightMoments:
    """Count, means and centred second moments of pairs, merged block by block.

    Chan, Golub & LeVeque 1983, Eq. 2.1: no difference of large sums, so nothing cancels.
    """

    def __init__(self) -> None:
        self.count = 0
        self.eps = 0.0  # machine epsilon of the numbers added
        self.x = self.y = self.xx = self.yy = self.xy = 0.0

    def add(self, x: Floats, y: Floats) -> None:
        count = x.size
        self.eps = float(np.finfo(x.dtype).eps)
        if count == 0:
            return
        mean_x, mean_y = float(x.mean()), float(y.mean())
        x, y = x - x.dtype.type(mean_x), y - y.dtype.type(mean_y)
        total = self.count + count
        step_x, step_y = mean_x - self.x, mean_y - self.y
        between = self.count * count / total
        self.xx += float(x @ x) + between * step_x * step_x
        self.yy += float(y @ y) + between * step_y * step_y
        self.xy += float(x @ y) + between * step_x * step_y
        self.x += step_x * count / total
        self.y += step_y * count / total
        self.count = total

    def correlation(self) -> float:
        # A spread of a few rounding errors around the mean counts as constant.
        rounding = self.count * self.eps**2 * 64
        if self.xx <= rounding * self.x**2 or self.yy <= rounding * self.y**2:
            return math.nan
        return self.xy / (math.sqrt(self.xx) * math.sqrt(self.yy))


def ratio(total: float, count: float) -> float:
    """Return total / count; NaN if nothing was counted."""
    return total / count if count else math.nan
