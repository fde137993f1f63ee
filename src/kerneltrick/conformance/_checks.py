"""The checks: what an operator on tokens should keep, whatever it computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kerneltrick.conformance._accuracy import definition, gradients, half_precision
from kerneltrick.conformance._dependence import batch, masked_rows, packed, padding, past
from kerneltrick.conformance._not_finite import not_finite
from kerneltrick.conformance._streaming import file, rollback, splits
from kerneltrick.conformance._trial import Trial, Violation


@dataclass(frozen=True)
class Check:
    """A property by name.

    find: returns how a trial violates it, or None.
    needs: the keywords and abilities without which there is nothing to check.
    implied: whether the definition and those keywords promise it. Otherwise only an operator that
        names the check in `promises` is judged by it.
    """

    name: str
    find: Callable[[Trial], Violation | None]
    needs: frozenset[str] = frozenset()
    implied: bool = True


CHECKS = {
    check.name: check
    for check in (
        Check("equals its definition in float64", definition),
        Check("past keeps its bits", past),
        Check("padding changes nothing", padding, frozenset({"mask"})),
        Check("packed = separate", packed, frozenset({"segment_ids"})),
        Check("prefill = decode at any split", splits, frozenset({"state"})),
        Check("batch of one = batch of many", batch),
        Check("NaN stays where it depends", not_finite, implied=False),
        Check("masked rows", masked_rows, frozenset({"mask"}), implied=False),
        Check("gradient against float64", gradients, frozenset({"gradient"})),
        Check("state saves and loads", file, frozenset({"state", "file"})),
        Check("rollback", rollback, frozenset({"state"}), implied=False),
        Check("half precision within its error", half_precision, frozenset({"dtype"})),
    )
}
