"""The comparison in words: a headline and a few findings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from kerneltrick.analysis._types import MapReport, Timing, WindowCurve

SMALL = 256  # a map with at most this many features is cheap
GOOD = 0.1  # relative output error up to which a map can replace softmax
LOST = 0.5  # relative output error above which a head is not reproduced
MOST = 4  # findings
FEW = 8  # number of heads that are listed by name


class CompareVerdict(NamedTuple):
    """A headline, and at most four findings of one or two sentences each."""

    headline: str
    findings: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join([self.headline, *(f"• {finding}" for finding in self.findings)])


def verdict(
    reports: Sequence[MapReport],
    uniform: MapReport,
    names: Sequence[Sequence[str]],
    windows: Sequence[WindowCurve],
    timing: Timing | None,
) -> CompareVerdict:
    """Say which map comes closest, what a cheap one loses, where to keep softmax, and the speed.

    `names` are the names of the heads of each layer.
    """
    judged = [r for r in reports if not math.isnan(r.summary.output_error)]
    if not judged:
        return _nothing_to_judge(reports)
    best = min(judged, key=lambda r: r.summary.output_error)
    small = [r for r in judged if r.features <= SMALL]
    lost, needed = _lost_heads(small, names), _needed_windows(windows, names)
    quality = _sentences(_against_uniform(best, uniform), _whole(best))
    features = _sentences(_against_limit(best), _cheap(best, small))
    findings = [quality, features, lost, needed, "" if timing is None else _gain(timing)]
    if len(list(filter(None, findings))) > MOST:
        findings[2:4] = [_sentences(lost, needed)]
    return CompareVerdict(_closest(best), tuple(filter(None, findings)))


def _sentences(*sentences: str) -> str:
    return " ".join(filter(None, sentences))


def _nothing_to_judge(reports: Sequence[MapReport]) -> CompareVerdict:
    if all(math.isnan(r.summary.mse) for r in reports):
        finding = "In every row of every map the weights sum to 0."
        return CompareVerdict("No map has an output on this data.", (finding,))
    return CompareVerdict(
        "The output of softmax is 0 in every head, so relative errors are undefined.",
        ("This happens if all values are 0. The weights are still compared.",),
    )


def _closest(best: MapReport) -> str:
    error, name = _share(best.summary.output_error), f"{best.map} (m = {best.features})"
    if best.summary.output_error <= GOOD:
        return f"{name} can replace softmax here: its output is off by {error}."
    return f"{name} comes closest to softmax, but its output is off by {error}."


def _whole(best: MapReport) -> str:
    error, whole = best.summary.output_error, best.summary.whole_error
    if not abs(whole - error) > 0.1 * error:
        return ""
    return f"Over all heads together (rather than on average) it is off by {_share(whole)}."


def _against_uniform(best: MapReport, uniform: MapReport) -> str:
    """How far the map gets from attention that ignores the queries and keys."""
    error, ignoring = best.summary.output_error, uniform.summary.output_error
    if not ignoring > 0:
        return ""
    baseline = f"Uniform weights, which ignore the queries and keys, are off by {_share(ignoring)}"
    if error >= ignoring:
        return f"{baseline}: no map here does better."
    return f"{baseline}: {best.map} closes {_share(1 - error / ignoring)} of that gap."


def _against_limit(best: MapReport) -> str:
    times, kind = best.summary.times_limit, best.summary.limit_kind
    if math.isnan(times) or math.isinf(times):
        return ""
    minimum = "minimum" if kind == "bound" else "estimated minimum"
    return (
        f"The squared error of its weights is {_round(times)} times the {minimum} for any map with "
        f"{best.features} features."
    )


def _cheap(best: MapReport, small: Sequence[MapReport]) -> str:
    if best.features <= SMALL or not small:
        return ""
    cheap = min(small, key=lambda r: r.summary.output_error)
    error = _share(cheap.summary.output_error)
    return f"Among maps with m ≤ {SMALL}, {cheap.map} comes closest: off by {error}."


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
    share = _share(LOST)
    if not lost:
        return f"In every head, some map with m ≤ {SMALL} is off by less than {share}."
    where = "in every head" if len(lost) == total else f"in {_named(lost)}"
    return f"Keep softmax {where}: all maps with m ≤ {SMALL} are off by more than {share} there."


def _needed_windows(windows: Sequence[WindowCurve], names: Sequence[Sequence[str]]) -> str:
    """The window that reproduces half of the heads, and the heads that no window reproduces."""
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
            f"No exact window up to {_tokens(longest)} brings half of the heads within {share} of "
            "softmax"
        )
    elif half == 0:
        text = f"Half of the heads are within {share} of softmax without a window"
    else:
        text = (
            f"An exact window of {_tokens(half)}, plus the first token, brings half of the heads "
            f"within {share} of softmax"
        )
    lost = [name for name, window in needs.items() if window == math.inf]
    if lost and half < math.inf:
        text += f"; in {_named(lost)} no window up to {longest} does"
    return text + "."


def _tokens(count: float) -> str:
    return f"{count:.0f} token{'s' * (count != 1)}"


def _named(heads: Sequence[str]) -> str:
    more = f" and {len(heads) - FEW} more" if len(heads) > FEW else ""
    return f"head{'s' * (len(heads) > 1)} {', '.join(heads[:FEW])}{more} (layer.head)"


def _gain(timing: Timing) -> str:
    """The measured speed; anything beyond the longest length is marked as extrapolated."""
    first, last, softmax = timing.lengths[0], timing.lengths[-1], timing.baseline
    if timing.crossover is None:
        return f"On this machine {timing.map} is never faster than {softmax}."
    if timing.crossover > last:
        return (
            f"On this machine {timing.map} is slower than {softmax} up to n = {last}, the longest "
            f"length measured; extrapolated, it is faster from n ≈ {_round(timing.crossover)} on."
        )
    since = f"from n ≈ {_round(timing.crossover)} on"
    if timing.crossover <= first:
        since = f"at every length measured, from n = {first} on"
    times = timing.softmax_ms[-1] / timing.linear_ms[-1]
    return (
        f"On this machine {timing.map} is faster than {softmax} {since}, and {_round(times)} "
        f"times as fast at n = {last}, the longest length measured."
    )


def _share(x: float) -> str:
    """Format a ratio as a percentage, or as a multiple from 2 on.

    >>> _share(0.754), _share(0.004), _share(3.21)
    ('75 %', '0.4 %', '3.2 times')
    """
    if x >= 2:
        return f"{_round(x)} times"
    return f"{100 * x:.0f} %" if x >= 0.0095 else f"{100 * x:.1g} %"


def _round(x: float) -> str:
    """Format a number with two significant digits."""
    if x >= 100:
        return f"{round(x, 1 - math.floor(math.log10(x))):.0f}"
    return f"{x:.2g}" if x < 10 else f"{x:.0f}"
