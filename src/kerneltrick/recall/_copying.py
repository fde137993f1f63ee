"""Copying: the text comes again, with or without noise to leave out."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar

import numpy as np

from kerneltrick.attention import check_count
from kerneltrick.recall._task import Examples, _distinct

NOISE, MARK = 0, 1  # the two tokens that are never copied


@dataclasses.dataclass(frozen=True)
class Selective:
    """`items` different tokens among noise; after a mark the model repeats them in order.

    Selective copying (Gu & Dao 2023, Section 4.1.1) at small size. The places of the tokens are
    random, so a model must know which tokens to keep; a fixed filter cannot. While it repeats, the
    model reads the token before each answer, so it needs what followed that token, not its place.

    >>> tokens, places, answers = Selective(vocabulary=10, length=12, items=3).examples(1, seed=0)
    >>> tokens[0].tolist(), answers[0].tolist()
    ([0, 7, 0, 0, 0, 0, 8, 9, 0, 1, 7, 8], [7, 8, 9])
    """

    name: ClassVar[str] = "selective"
    vocabulary: int = 64
    length: int = 64
    items: int = 8

    def __post_init__(self) -> None:
        for name, least in (("vocabulary", 4), ("length", 2), ("items", 1)):
            check_count(self.name, name, getattr(self, name), least=least)
        if 2 * self.items > self.length:
            raise ValueError(
                f"{self.items} tokens and their copies need a length of {2 * self.items}, not "
                f"{self.length}: use fewer items or a longer one"
            )
        if self.items > self.vocabulary - 2:
            raise ValueError(
                f"a vocabulary of {self.vocabulary} has only {self.vocabulary - 2} tokens to copy, "
                f"but {self.items} different ones are needed"
            )

    @property
    def chance(self) -> float:
        """The share of answers that guessing gets right."""
        return 1 / (self.vocabulary - 2)

    @property
    def told(self) -> str:
        """The task in a sentence."""
        return (
            f"Each text of {self.length} tokens holds {self.items} different tokens among noise. "
            "At the end the model must repeat them in order."
        )

    def easier(self) -> tuple[Selective, ...]:
        """Versions with 2, 4, 8, … tokens to copy, and at the end the task itself."""
        if self.items < 4:
            return (self,)
        fewer = self.items // 2
        half = dataclasses.replace(self, items=fewer, length=max(2 * fewer, self.length // 2))
        return (*half.easier(), self)

    def examples(self, count: int, seed: Any) -> Examples:
        """Draw `count` sequences; `seed` is anything that np.random.default_rng takes."""
        rng = np.random.default_rng(seed)
        p, room = self.items, self.length - self.items
        items = 2 + _distinct(rng, count, self.vocabulary - 2, p)
        tokens = np.full((count, self.length), NOISE)
        np.put_along_axis(tokens, np.sort(_distinct(rng, count, room, p), axis=1), items, axis=1)
        tokens[:, room], tokens[:, room + 1 :] = MARK, items[:, :-1]
        places = np.broadcast_to(np.arange(room, self.length), (count, p)).copy()
        return Examples(tokens, places, items)


@dataclasses.dataclass(frozen=True)
class Copy:
    """Different tokens, a mark, and the same tokens again; the model says each one in advance.

    >>> tokens, places, answers = Copy(vocabulary=10, length=6).examples(1, seed=0)
    >>> tokens[0].tolist(), answers[0].tolist()
    ([7, 8, 9, 1, 7, 8], [7, 8, 9])
    """

    name: ClassVar[str] = "copy"
    vocabulary: int = 64
    length: int = 32

    def __post_init__(self) -> None:
        check_count("copy", "length", self.length, least=2)
        if self.length % 2:
            raise ValueError(f"copy needs an even length, not {self.length}")
        self._selective()

    def _selective(self) -> Selective:
        """The same task: there is no room for noise."""
        return Selective(self.vocabulary, self.length, self.length // 2)

    @property
    def chance(self) -> float:
        """The share of answers that guessing gets right."""
        return self._selective().chance

    @property
    def told(self) -> str:
        """The task in a sentence."""
        return (
            f"Each text has {self.length // 2} different tokens. After them the model must repeat "
            "them in order."
        )

    def easier(self) -> tuple[Copy, ...]:
        """Versions of 4, 8, … tokens, and at the end the task itself."""
        if self.length < 8:
            return (self,)
        return (*dataclasses.replace(self, length=self.length // 4 * 2).easier(), self)

    def examples(self, count: int, seed: Any) -> Examples:
        """Draw `count` sequences; `seed` is anything that np.random.default_rng takes."""
        return self._selective().examples(count, seed)
