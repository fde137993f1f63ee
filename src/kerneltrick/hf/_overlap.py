"""Noticing that a text to evaluate on was fitted to, from a small sketch of the fitted text.

The sketch holds the smallest hashes of all runs of tokens (a bottom-k sketch), which are so long
that chance does not repeat them (see `identifying_run`). Runs of another text whose hashes are
below the largest of them are a fair sample of that text, and each is in the sketch exactly if it
was fitted to.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from kerneltrick.hf._split import Windows, stretches

SIZE = 4096  # hashes in a sketch
BYTES = 6  # bytes of a hash
NOTICED = 0.1  # the share of fitted text from which on it is reported


def sketch(windows: Windows, run: int) -> list[str]:
    """Return the sketch of a text, of its runs of so many tokens."""
    return sorted(_hashes(windows, run))[:SIZE]


def overlap(windows: Windows, known: Sequence[Any], run: int) -> float:
    """Return the share of a text that was fitted to, as far as a sketch of the fitted text tells.

    windows: the text.
    known, run: the sketch, and the length of its runs.
    """
    if not known:
        return 0.0
    found = _hashes(windows, run)
    if len(known) >= SIZE:
        found = {x for x in found if x <= known[-1]}
    return len(found & set(known)) / len(found) if found else 0.0


def overlap_remark(windows: Windows, known: Sequence[Any], run: int) -> str:
    """Return a sentence if a text was partly fitted to, else nothing."""
    share = overlap(windows, known, run)
    if share < NOTICED:
        return ""
    return (
        f" About {share:.0%} of this text was used for fitting, so these figures are too good; "
        "evaluate on other text."
    )


def _hashes(windows: Windows, run: int) -> set[str]:
    return {
        hashlib.blake2b(np.array(stretch, dtype="<i8").tobytes(), digest_size=BYTES).hexdigest()
        for ids in windows
        for stretch in stretches(ids, run)
    }
