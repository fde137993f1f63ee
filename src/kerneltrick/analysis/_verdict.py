"""The comparison in a paragraph of words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kerneltrick.analysis._types import MapReport, Timing, WindowCurve

SMALL = 256  # features of a map that is still cheap
GOOD = 0.1  # a relative output error at which a map can stand in for softmax
LOST = 0.5  # one at which a head is not reproduced
FEW = 8  # heads named one by one


def verdict(
    reports: Sequence[MapReport],
    uniform: MapReport,
    names: Sequence[Sequence[str]],
    windows: Sequence[WindowCurve],
    timing: Timing | None,
) -> str:
    """Which map comes closest, which cheap one, where softmax should stay, and what it gains.

    `names` are those of the heads of each layer.
    """
    judged = [r for r in reports if not math.isnan(r.summary.output_error)]
    if not judged:
        return _nothing_to_judge(reports)
    best = min(judged, key=lambda r: r.summary.output_error)
    sentences = [_closest(best), _against_uniform(best, uniform), _against_limit(best)]
    small = [r for r in judged if r.features <= SMALL]
    if best.features > SMALL and small:
        cheap = min(small, key=lambda r: r.summary.output_error)
        error = _share(cheap.summary.output_error)
        sentences.append(f"Among maps with m ≤ {SMALL}, {cheap.map} is closest: off by {error}.")
    sentences += [_lost_heads(small, names), _needed_windows(windows, names)]
    if timing is not None:
        sentences.append(_gain(timing))
    return " ".join(filter(None, sentences))


def _nothing_to_judge(reports: Sequence[MapReport]) -> str:
    if all(math.isnan(r.summary.mse) for r in reports):
        return "No map has an output on this data: every row's weights sum to 0."
    return (
        "Softmax's output is 0 in every head, as it is where all values are 0: there is no size "
        "that an error could be compared with. The weights are compared all the same."
    )


def _closest(best: MapReport) -> str:
    error, whole = best.summary.output_error, best.summary.whole_error
    means = "can stand in for softmax here" if error <= GOOD else "comes closest to softmax"
    together = f"; {_share(whole)} of all heads together" if _share(whole) != _share(error) else ""
    return (
        f"{best.map} (m = {best.features}) {means}: its output is off by {_share(error)} of its "
        f"size (mean over heads{together})."
    )


def _against_uniform(best: MapReport, uniform: MapReport) -> str:
    """How far the map comes from attention that looks at nothing."""
    error, nothing = best.summary.output_error, uniform.summary.output_error
    if not nothing > 0:
        return ""
    reference = (
        f"Looking at nothing, with the same weight for every token, is off by {_share(nothing)}"
    )
    if error >= nothing:
        return f"{reference}: no map here does better than that."
    return f"{reference}, so {best.map} goes {_share(1 - error / nothing)} of the way to softmax."


def _against_limit(best: MapReport) -> str:
    times, kind = best.summary.times_limit, best.summary.limit_kind
    if math.isnan(times) or math.isinf(times):
        return ""
    limit = "limit" if kind == "bound" else "estimated limit"
    return (
        f"Its weights err {_round(times)} times as much as the {limit}, the least that any map "
        "with as many features can."
    )


def _lost_heads(small: Sequence[MapReport], names: Sequence[Sequence[str]]) -> str:
    if not small:
        return ""
    lost, total = [], 0
    for i, row in enumerate(names):
        for j, name in enumerate(row):
            found = [r.heads[i][j] for r in small]
            errors = [h.output_error for h in found if h is not None]
            errors = [e for e in errors if not math.isnan(e)]
            if errors:
                total += 1
                if min(errors) > LOST:
                    lost.append(name)
    if not lost:
        return f"In every head some map with m ≤ {SMALL} is off by less than half."
    if len(lost) == total:
        return f"In every head each map with m ≤ {SMALL} is off by more than half: keep softmax."
    return (
        f"In {_named(lost)} each map with m ≤ {SMALL} is off by more than half: keep softmax there."
    )


def _needed_windows(windows: Sequence[WindowCurve], names: Sequence[Sequence[str]]) -> str:
    """From which window on heads are reproduced, and where no window does it."""
    points = [point for curve in windows for point in curve.points]
    if not points:
        return ""
    needs: dict[str, float] = {}
    for i, row in enumerate(names):
        for j, name in enumerate(row):
            if any(not math.isnan(point.heads[i][j]) for point in points):
                good = [point.window for point in points if point.heads[i][j] <= GOOD]
                needs[name] = min(good, default=math.inf)
    if not needs:
        return ""
    longest, share = max(point.window for point in points), _share(GOOD)
    half = sorted(needs.values())[(len(needs) - 1) // 2]
    if half == math.inf:
        text = (
            f"No window up to {longest} tokens brings half of the heads within {share} of softmax"
        )
    elif half == 0:
        text = f"Half of the heads are within {share} of softmax without a window"
    else:
        text = (
            f"With a window of {half:.0f} tokens, and the first one, exact beside a map, half of "
            f"the heads are within {share} of softmax"
        )
    lost = [name for name, window in needs.items() if window == math.inf]
    if lost and len(lost) < len(needs):
        text += f"; in {_named(lost)} none up to {longest} helps"
    return text + "."


def _named(heads: Sequence[str]) -> str:
    more = f" and {len(heads) - FEW} more" if len(heads) > FEW else ""
    return f"head{'s' * (len(heads) > 1)} {', '.join(heads[:FEW])}{more} (layer.head)"


def _gain(timing: Timing) -> str:
    """What was measured; beyond the longest length it is said to be extrapolated."""
    first, last, softmax = timing.lengths[0], timing.lengths[-1], timing.baseline
    if timing.crossover is None:
        return f"On this machine {timing.map} does not overtake {softmax}."
    if timing.crossover > last:
        return (
            f"On this machine {timing.map} is slower than {softmax} up to n = {last}, the longest "
            f"measured; extrapolated, it overtakes at n ≈ {_round(timing.crossover)}."
        )
    since = f"from n ≈ {_round(timing.crossover)} on"
    if timing.crossover <= first:
        since = f"at every length measured, from n = {first} on"
    times = timing.softmax_ms[-1] / timing.linear_ms[-1]
    return (
        f"On this machine {timing.map} is faster than {softmax} {since}, and {_round(times)} "
        f"times as fast at n = {last}, the longest measured."
    )


def _share(x: float) -> str:
    """A part of something, or several times it.

    >>> _share(0.754), _share(0.004), _share(3.21)
    ('75 %', '0.4 %', '3.2 times')
    """
    if x >= 2:
        return f"{_round(x)} times"
    return f"{100 * x:.0f} %" if x >= 0.0095 else f"{100 * x:.1g} %"


def _round(x: float) -> str:
    """Two digits that matter."""
    if x >= 100:
        return f"{round(x, 1 - math.floor(math.log10(x))):.0f}"
    return f"{x:.2g}" if x < 10 else f"{x:.0f}"
