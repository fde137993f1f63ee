"""How many tokens in a row identify a place in a text, and so tell a copy from chance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

STRETCH = 8  # tokens in a row that identify a place in an ordinary text
PIECES = 16  # a text in fewer pieces is cut into so many, if they have room for a stretch
USUAL = 0.25  # the share of pieces that may repeat more of the text than is usual in it


def identifying_run(texts: Sequence[Any]) -> int:
    """Return how many tokens in a row identify a place in these texts: `STRETCH` or more.

    A text of few different tokens, or one that follows a template, repeats itself by chance. The
    longest run that a piece shares with the other pieces says how far chance goes; at least three
    quarters of the pieces share less than the run returned here, half as long. As each further
    token is as unlikely as those before it, hardly any independent text shares twice that.

    texts: the token numbers of each text. A run lies within one text.

    >>> rng = np.random.default_rng(0)
    >>> [identifying_run(rng.integers(0, count, (40, 128))) for count in (2, 4, 1000)]
    [38, 20, 8]
    """
    pieces = [np.asarray(text) for text in texts]
    if len(pieces) < PIECES:
        least = max(2 * STRETCH, sum(map(len, pieces)) // PIECES)
        pieces = [part for x in pieces for part in np.array_split(x, max(1, len(x) // least))]
    longest = min(map(len, pieces), default=0)
    if len(pieces) < 2 or longest <= STRETCH:
        return STRETCH
    repeats = _Repeats(pieces)
    low = STRETCH // 2
    if repeats.share(low + 1) <= USUAL:
        return STRETCH
    high = 2 * low
    while high < longest and repeats.share(high) > USUAL:
        low, high = high, 2 * high
    high = min(high, longest)
    while high - low > 1:  # runs of `low` tokens are usual, runs of `high` are not, or too long
        middle = (low + high) // 2
        low, high = (middle, high) if repeats.share(middle) > USUAL else (low, middle)
    return max(STRETCH, min(2 * low, longest))


class _Repeats:
    """Runs of tokens that several pieces of a text have in common."""

    def __init__(self, pieces: list[NDArray[Any]]) -> None:
        lengths = np.array([len(x) for x in pieces])
        self.count = len(pieces)
        self.piece = np.repeat(np.arange(self.count), lengths)
        self.room = np.repeat(lengths.cumsum(), lengths) - np.arange(lengths.sum())
        # The names of all runs of 1, 2, 4, … tokens; equal runs have equal names.
        self.names = [np.unique(np.concatenate(pieces), return_inverse=True)[1]]

    def share(self, size: int) -> float:
        """Return the share of pieces with a run of so many tokens that another piece has too."""
        while 2 << len(self.names) - 1 <= size:
            self.names.append(self._joined(self.names[-1], 1 << len(self.names) - 1))
        power = size.bit_length() - 1
        names = self._joined(self.names[power], size - (1 << power))
        whole = self.room >= size
        names, piece = names[whole], self.piece[whole]
        first, last = (np.zeros(len(self.piece) + 1, dtype=np.int64) for _ in range(2))
        first[names[::-1]] = piece[::-1]  # the last assignment to a place stays
        last[names] = piece
        return len(np.unique(piece[first[names] != last[names]])) / self.count

    def _joined(self, names: NDArray[Any], apart: int) -> NDArray[Any]:
        """Return the names of two overlapping or adjacent runs, the second so much later."""
        later = np.concatenate([names[apart:], np.zeros(apart, dtype=names.dtype)])
        return np.unique(names * (names.max() + 1) + later, return_inverse=True)[1]
