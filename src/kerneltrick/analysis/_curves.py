"""Error against m, for families of maps with an adjustable m."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kerneltrick import maps
from kerneltrick._arrays import Array
from kerneltrick.analysis._blocks import blocks, check_problem
from kerneltrick.analysis._limit import Limit
from kerneltrick.analysis._quality import OutputTotals
from kerneltrick.analysis._sampled import sampled_rows
from kerneltrick.analysis._weights import ratio

LARGEST = 6000  # features of the widest map on a curve
FAVOR_FEATURES = (16, 32, 64, 128, 256, 512)


def families(d: int) -> dict[str, list[str]]:
    """Return the maps of each family, by increasing m."""
    found = {
        f"favor {kind}": [f"favor:features={m},kind={kind}" for m in FAVOR_FEATURES]
        for kind in ("positive", "hyperbolic", "trig")
    }
    found["taylor order"] = [f"taylor:order={p}" for p in range(1, 6)]
    found["poly degree"] = [f"poly:degree={p}" for p in range(1, 6)]
    return {
        family: [text for text in texts if maps.get(text).dim(d) <= LARGEST]
        for family, texts in found.items()
    }


def errors(
    q: Array, k: Array, v: Array, text: str, causal: bool, softmax_scale: float, seed: int
) -> tuple[float, float]:
    """Return the MSE of the weights and the relative error of the outputs over all given heads.

    Above n = 2048 they are computed on 512 random rows.
    """
    problem = check_problem("errors", q, k, v, text, causal, None, softmax_scale)
    outputs = OutputTotals(problem)
    squares, entries = 0.0, 0
    for block in blocks(problem, only=sampled_rows(problem.q.shape[2], seed)):
        outputs.add(block)
        kept = block.entries
        difference = block.weights - block.softmax
        if kept is not None:
            difference = difference[kept]
        squares += float(difference.ravel() @ difference.ravel())
        entries += difference.size
    return ratio(squares, entries), outputs.relative_error()


def mean_bound(limits: Sequence[Limit], m: int) -> float:
    """Return the mean over heads of the smallest MSE of any map with m features."""
    values = [limit.mse(m) for limit in limits]
    return sum(values) / len(values) if values else math.nan
