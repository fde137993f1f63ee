"""The checks: what an operator on tokens should keep, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kerneltrick.conformance._accuracy import definition, gradients, half_precision
from kerneltrick.conformance._dependence import batch, empty, masked_rows, packed, padding, past
from kerneltrick.conformance._not_finite import not_finite
from kerneltrick.conformance._purity import layouts, repeated, threads, unchanged
from kerneltrick.conformance._streaming import file, rollback, splits
from kerneltrick.conformance._tokens import RANGES
from kerneltrick.conformance._trial import Trial, Violation

ORDINARY = RANGES[:2]  # where derivatives do not overflow


@dataclass(frozen=True)
class Check:
    """A property by name.

    find: returns how a trial violates it, or None.
    needs: the keywords and abilities without which there is nothing to check.
    implied: whether the definition and those keywords promise it. Otherwise only an operator that
        names the check in `promises` is judged by it.
    ranges: the values it is tried on, see `tokens`. All but the first only for operators that
        promise `EXTREME`.
    """

    name: str
    find: Callable[[Trial], Violation | None]
    needs: frozenset[str] = frozenset()
    implied: bool = True
    ranges: tuple[str, ...] = RANGES


EXTREME = "right at extreme values"
CHECKS = {
    check.name: check
    for check in (
        Check("equals its definition in float64", definition, ranges=RANGES[:1]),
        Check("past keeps its bits", past),
        Check("padding changes nothing", padding, frozenset({"mask"})),
        Check("packed = separate", packed, frozenset({"segment_ids"})),
        Check("prefill = decode at any split", splits, frozenset({"state"})),
        Check("batch of one = batch of many", batch),
        Check("NaN stays where it depends", not_finite, implied=False),
        Check("masked rows", masked_rows, frozenset({"mask"}), implied=False),
        Check("gradient against float64", gradients, frozenset({"gradient"}), ranges=ORDINARY),
        Check("state saves and loads", file, frozenset({"state", "file"})),
        Check("rollback", rollback, frozenset({"state"}), implied=False),
        Check(
            "half precision within its error",
            half_precision,
            frozenset({"dtype"}),
            ranges=RANGES[:1],
        ),
        Check(EXTREME, definition, ranges=RANGES[1:]),
        Check("inputs and states stay as they were", unchanged),
        Check("repeated calls give the same bits", repeated),
        Check("memory layout changes nothing", layouts),
        Check("threads change no bit", threads, frozenset({"threads"})),
        Check("no tokens change nothing", empty, implied=False),
    )
}
