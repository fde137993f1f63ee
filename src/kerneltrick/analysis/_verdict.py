"""The comparison in a paragraph of words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kerneltrick.analysis._types import MapReport, Timing

SMALL = 256  # features of a map that is still cheap
LOST = 0.5  # a relative output error at which a head is not reproduced
FEW = 8  # heads named one by one


def verdict(
    reports: Sequence[MapReport], layers: Sequence[int], heads: Sequence[int], timing: Timing | None
) -> str:
    """Which map comes closest, which small one, where softmax should stay, and what it gains."""
    judged = [r for r in reports if not math.isnan(r.summary.output_error)]
    if not judged:
        return "No map has an output on this data: every row's weights sum to 0."
    best = min(judged, key=lambda r: r.summary.output_error)
    sentences = [f"{best.map} (m = {best.features}) {_keeps(best)}{_against_bound(best)}."]
    small = [r for r in judged if r.features <= SMALL]
    if best.features > SMALL and small:
        runner_up = min(small, key=lambda r: r.summary.output_error)
        sentences.append(
            f"Among maps with m ≤ {SMALL}, {runner_up.map} is closest: it {_keeps(runner_up)}."
        )
    sentences.append(_lost_heads(small, layers, heads))
    if timing is not None:
        sentences.append(_gain(timing))
    return " ".join(filter(None, sentences))


def _keeps(report: MapReport) -> str:
    error = report.summary.output_error
    if error >= 1:
        return f"is no nearer to softmax's output than zeros are (relative error {error:.2f})"
    return f"keeps {100 * (1 - error):.0f} % of softmax's output (relative error {error:.2f})"


def _against_bound(report: MapReport) -> str:
    times, kind = report.summary.times_bound, report.summary.bound_kind
    if math.isnan(times) or math.isinf(times):
        return ""
    least = "the least possible" if kind == "bound" else "the estimated least"
    return f"; the error of its weights is {_round(times)} times {least} for that m"


def _lost_heads(small: Sequence[MapReport], layers: Sequence[int], heads: Sequence[int]) -> str:
    if not small:
        return ""
    lost, total = [], 0
    for i, layer in enumerate(layers):
        for j, head in enumerate(heads):
            found = [r.heads[i][j] for r in small]
            errors = [h.output_error for h in found if h is not None]
            errors = [e for e in errors if not math.isnan(e)]
            if errors:
                total += 1
                if min(errors) > LOST:
                    lost.append(f"{layer}.{head}")
    if not lost:
        return f"Every head is within {100 * LOST:.0f} % by some map with m ≤ {SMALL}."
    if len(lost) == total:
        return f"No head is within {100 * LOST:.0f} % by any map with m ≤ {SMALL}: keep softmax."
    named = ", ".join(lost[:FEW]) + (f" and {len(lost) - FEW} more" if len(lost) > FEW else "")
    plural = "Heads" if len(lost) > 1 else "Head"
    verb = "are" if len(lost) > 1 else "is"
    return (
        f"{plural} {named} (layer.head) {verb} too peaked for any map here with m ≤ {SMALL}: "
        f"keep softmax there."
    )


def _gain(timing: Timing) -> str:
    if timing.crossover is None:
        return f"On this machine {timing.map} does not overtake softmax."
    n = 16384
    linear = timing.linear_fit[0] + timing.linear_fit[1] * n
    softmax = sum(c * n**p for p, c in enumerate(timing.softmax_fit))
    return (
        f"On this machine {timing.map} overtakes softmax at n ≈ {_round(timing.crossover)} and by "
        f"the fits is {_round(softmax / linear)} times as fast at n = {n}."
    )


def _round(x: float) -> str:
    """Two digits that matter."""
    if x >= 100:
        return f"{round(x, 1 - math.floor(math.log10(x))):.0f}"
    return f"{x:.2g}" if x < 10 else f"{x:.0f}"
