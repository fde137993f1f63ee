"""Which windows of tokens maps are fitted to, which validate the fit, and which evaluate it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from kerneltrick.analysis import STRETCH

Windows: TypeAlias = Sequence[Sequence[int]]

MOST_VALIDATION = 8  # windows that validate a fit; a sixteenth of a short text
LEAST_HELD_OUT, MOST_HELD_OUT = 2, 16  # windows at the end of a text that evaluate a model


class OverlapError(ValueError):
    """The text to evaluate on overlaps the text that maps are fitted to."""


class Split(NamedTuple):
    """Windows to fit to, windows that validate the fit, and how many were left out of both."""

    fitted: list[Sequence[int]]
    validation: list[Sequence[int]]
    dropped: int  # windows that repeat text of the validation windows


def hold_out(
    windows: Windows, held_out: Windows | Literal["end"] | None
) -> tuple[Windows, Windows]:
    """Return the windows to linearise with, and those to evaluate on.

    held_out: the windows to evaluate on. "end" takes the last eighth of `windows`, at least 2 and
        at most 16 of them. None evaluates nothing.
    """
    if held_out == "end":
        if len(windows) < 2 + LEAST_HELD_OUT:
            raise ValueError(
                f"holding back the end of the text needs at least {2 + LEAST_HELD_OUT} windows, "
                f"not {len(windows)}; provide a longer text, or held_out windows"
            )
        count = max(LEAST_HELD_OUT, min(MOST_HELD_OUT, len(windows) // 8))
        return windows[:-count], windows[-count:]
    if held_out is None:
        return windows, ()
    if len({len(ids) for ids in held_out}) != 1:
        raise ValueError("held_out needs windows of tokens, all of one length")
    if {tuple(ids) for ids in windows} & {tuple(ids) for ids in held_out}:
        raise OverlapError("held_out overlaps the fitting text; evaluate on other text")
    return windows, held_out


def split(windows: Windows) -> Split:
    """Set some windows apart to validate the fit, spread over the text: a chapter is not a book.

    Texts repeat themselves (licences, headings). A window that shares eight tokens in a row with a
    validation window is not fitted to.
    """
    count = max(1, min(MOST_VALIDATION, len(windows) // 16))
    validation = [windows[(2 * at + 1) * len(windows) // (2 * count)] for at in range(count)]
    known = set().union(*map(stretches, validation))
    fitted = [ids for ids in windows if known.isdisjoint(stretches(ids))]
    if not fitted:
        which = (
            "the validation window" if count == 1 else f"the {_number(count)} validation windows"
        )
        raise ValueError(f"all windows overlap {which}; provide a longer text")
    return Split(fitted, validation, len(windows) - len(fitted) - count)


def _number(count: int) -> str:
    """Return the number of validation windows as a word."""
    return ("two", "three", "four", "five", "six", "seven", "eight")[count - 2]


def stretches(ids: Sequence[int]) -> set[tuple[int, ...]]:
    """Return all runs of eight tokens in a window."""
    size = min(STRETCH, len(ids))
    return {tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)}
