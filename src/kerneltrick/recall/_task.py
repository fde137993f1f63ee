"""Multi-query associative recall: the text, and what is asked in it."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import numpy as np

from kerneltrick.attention._arguments import check_count


class Examples(NamedTuple):
    """Texts, and in each the places of the queries with the tokens that answer them."""

    tokens: np.ndarray[Any, Any]  # (count, length)
    places: np.ndarray[Any, Any]  # (count, pairs)
    answers: np.ndarray[Any, Any]  # (count, pairs)


@dataclasses.dataclass(frozen=True)
class Task:
    """`pairs` keys with their values, k₁v₁k₂v₂…, and later each key again: which value was it?

    As Zoology has it (Arora et al. 2023, Section 3): keys come from the lower half of the
    vocabulary (without 0), values from the upper; no key and no value twice. After the pairs,
    queries stand at even offsets, the gap of the i-th of them drawn with a probability that falls
    as i^{power − 1}, so that most come soon. All other tokens are random.

    >>> found = Task(vocabulary=20, length=12, pairs=2).examples(1, seed=0)
    >>> found.tokens.shape, bool((found.answers >= 10).all())
    ((1, 12), True)
    """

    vocabulary: int = 8192
    length: int = 64
    pairs: int = 4
    power: float = 0.01

    def __post_init__(self) -> None:
        for name, least in (("vocabulary", 4), ("length", 4), ("pairs", 1)):
            check_count("recall", name, getattr(self, name), least=least)
        if self.length % 2:
            raise ValueError(f"recall needs an even length, not {self.length}")
        if 4 * self.pairs > self.length:
            raise ValueError(
                f"{self.pairs} pairs and their queries, every other token, need a length of "
                f"{4 * self.pairs}, not {self.length}: give fewer pairs or longer texts"
            )
        if self.pairs > self.vocabulary // 2 - 1:
            raise ValueError(
                f"a vocabulary of {self.vocabulary} has {self.vocabulary // 2 - 1} keys, too few "
                f"for {self.pairs} different ones"
            )
        if not 0 < self.power <= 1:
            raise ValueError(f"recall needs 0 < power ≤ 1, not {self.power}")

    def easier(self) -> tuple[Task, ...]:
        """This task after those of half its pairs, a quarter and so on, down to two.

        >>> [(task.pairs, task.length) for task in Task(pairs=16, length=64).easier()]
        [(2, 16), (4, 32), (8, 64), (16, 64)]
        """
        if self.pairs < 4:
            return (self,)
        fewer = self.pairs // 2
        half = dataclasses.replace(self, pairs=fewer, length=min(self.length, 8 * fewer))
        return (*half.easier(), self)

    def examples(self, count: int, seed: Any) -> Examples:
        """So many texts, drawn from a seed (anything that np.random.default_rng takes)."""
        rng = np.random.default_rng(seed)
        half, p = self.vocabulary // 2, self.pairs
        keys = 1 + _distinct(rng, count, half - 1, p)
        values = half + _distinct(rng, count, self.vocabulary - half, p)
        tokens = rng.integers(self.vocabulary, size=(count, self.length))
        tokens[:, 0 : 2 * p : 2], tokens[:, 1 : 2 * p : 2] = keys, values
        room = (self.length - 2 * p) // 2
        # The largest of log-weights with Gumbel noise are draws without replacement, in order.
        weights = (self.power - 1) * np.log(np.arange(1, room + 1))
        noisy = weights + rng.gumbel(size=(count, room))
        gaps = np.argsort(-noisy, axis=1)[:, :p]
        places = 2 * p + 2 * gaps
        np.put_along_axis(tokens, places, keys, axis=1)
        return Examples(tokens, places, values)


def _distinct(rng: np.random.Generator, count: int, size: int, chosen: int) -> Any:
    """Rows of `chosen` different whole numbers below `size`, in any order."""
    noise = rng.random((count, size), dtype=np.float32)
    found = np.argpartition(noise, chosen - 1, axis=1)[:, :chosen]
    return rng.permuted(found, axis=1)
