"""Which windows of tokens maps are fitted to, which validate the fit, and which evaluate it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple, TypeAlias

from kerneltrick.analysis import identifying_run

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
    run: int  # how many tokens in a row make a repetition

    def __str__(self) -> str:
        """Return a sentence about what is used."""
        used, skipped = len(self.fitted), "No other is skipped."
        if self.dropped:
            skipped = (
                f"Windows that are skipped: {self.dropped}, because they repeat text of the "
                f"validation windows ({self.run} tokens in a row or more; --overlap "
                "changes this)."
            )
        return (
            f"Fitting uses {used} of {used + len(self.validation) + self.dropped} windows; "
            f"{len(self.validation)} are for validation. {skipped}"
        )


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


def split(windows: Windows, run: int | None = None) -> Split:
    """Set some windows apart to validate the fit, spread over the text: a chapter is not a book.

    Texts repeat themselves (licences, headings). A window that shares `run` tokens in a row with a
    validation window is not fitted to. By default these are more than chance gives, judged by how
    the windows to fit to repeat each other.
    """
    count = max(1, min(MOST_VALIDATION, len(windows) // 16))
    places = {(2 * at + 1) * len(windows) // (2 * count) for at in range(count)}
    validation = [windows[place] for place in sorted(places)]
    others = [ids for place, ids in enumerate(windows) if place not in places]
    run = identifying_run(others) if run is None else run
    known = set().union(*(stretches(ids, run) for ids in validation))
    fitted = [ids for ids in others if known.isdisjoint(stretches(ids, run))]
    if not fitted:
        which = (
            "the validation window" if count == 1 else f"the {_number(count)} validation windows"
        )
        raise ValueError(
            f"all windows share {run} tokens in a row with {which}; provide a text that repeats "
            "itself less, or let longer repetitions pass (--overlap)"
        )
    return Split(fitted, validation, len(others) - len(fitted), run)


def _number(count: int) -> str:
    """Return the number of validation windows as a word."""
    return ("two", "three", "four", "five", "six", "seven", "eight")[count - 2]


def stretches(ids: Sequence[int], size: int) -> set[tuple[int, ...]]:
    """Return all runs of so many tokens in a window; a shorter window is one run."""
    size = min(size, len(ids))
    return {tuple(ids[at : at + size]) for at in range(len(ids) - size + 1)}
