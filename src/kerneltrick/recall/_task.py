"""Multi-query associative recall: the sequences, and the queries in them."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from kerneltrick.attention import check_count


class Examples(NamedTuple):
    """Sequences, the places of the queries in each, and the tokens that answer them."""

    tokens: np.ndarray[Any, Any]  # (count, length)
    places: np.ndarray[Any, Any]  # (count, pairs)
    answers: np.ndarray[Any, Any]  # (count, pairs)


class AnyTask(Protocol):
    """What a sweep needs to know about a task."""

    name: ClassVar[str]

    @property
    def vocabulary(self) -> int: ...

    @property
    def length(self) -> int: ...

    @property
    def chance(self) -> float:
        """The share of answers that guessing gets right."""

    @property
    def told(self) -> str:
        """The task in a sentence."""

    def easier(self) -> tuple[AnyTask, ...]:
        """Easier versions of the task, and at the end the task itself."""

    def examples(self, count: int, seed: Any) -> Examples:
        """Draw `count` sequences; `seed` is anything that np.random.default_rng takes."""


@dataclasses.dataclass(frozen=True)
class Task:
    """A sequence lists `pairs` keys with values, k₁v₁k₂v₂…; later each key asks for its value.

    This is the task of Zoology (Arora et al. 2023, Section 3). Keys come from the lower half of the
    vocabulary (without 0) and values from the upper half; no key and no value appears twice. After
    the pairs, the queries stand at even offsets. The i-th offset is drawn with a probability
    proportional to i^{power − 1}, so most queries come soon. All other tokens are random.

    >>> found = Task(vocabulary=20, length=12, pairs=2).examples(1, seed=0)
    >>> found.tokens.shape, bool((found.answers >= 10).all())
    ((1, 12), True)
    """

    name: ClassVar[str] = "recall"
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
                f"{self.pairs} pairs and their queries, which take every other token, need a "
                f"length of {4 * self.pairs}, not {self.length}: use fewer pairs or a longer one"
            )
        if self.pairs > self.vocabulary // 2 - 1:
            raise ValueError(
                f"a vocabulary of {self.vocabulary} has only {self.vocabulary // 2 - 1} keys, but "
                f"{self.pairs} pairs need {self.pairs} different ones"
            )
        if not 0 < self.power <= 1:
            raise ValueError(f"recall needs 0 < power ≤ 1, not {self.power}")

    @property
    def chance(self) -> float:
        """The share of answers that guessing gets right."""
        return 1 / (self.vocabulary - self.vocabulary // 2)

    @property
    def told(self) -> str:
        """The task in a sentence."""
        return (
            f"Each text of {self.length} tokens contains {self.pairs} keys with their values "
            f"(vocabulary {self.vocabulary:,}). Later each key comes again, and the model must "
            "name its value."
        )

    def easier(self) -> tuple[Task, ...]:
        """Versions of this task with 2, 4, 8, … pairs, and at the end the task itself.

        >>> [(task.pairs, task.length) for task in Task(pairs=16, length=64).easier()]
        [(2, 16), (4, 32), (8, 64), (16, 64)]
        """
        if self.pairs < 4:
            return (self,)
        fewer = self.pairs // 2
        half = dataclasses.replace(self, pairs=fewer, length=min(self.length, 8 * fewer))
        return (*half.easier(), self)

    def examples(self, count: int, seed: Any) -> Examples:
        """Draw `count` sequences; `seed` is anything that np.random.default_rng takes."""
        rng = np.random.default_rng(seed)
        half, p = self.vocabulary // 2, self.pairs
        keys = 1 + _distinct(rng, count, half - 1, p)
        values = half + _distinct(rng, count, self.vocabulary - half, p)
        tokens = rng.integers(self.vocabulary, size=(count, self.length))
        tokens[:, 0 : 2 * p : 2], tokens[:, 1 : 2 * p : 2] = keys, values
        room = (self.length - 2 * p) // 2
        # The largest log-weights plus Gumbel noise are draws without replacement, in order.
        weights = (self.power - 1) * np.log(np.arange(1, room + 1))
        noisy = weights + rng.gumbel(size=(count, room))
        gaps = np.argsort(-noisy, axis=1)[:, :p]
        places = 2 * p + 2 * gaps
        np.put_along_axis(tokens, places, keys, axis=1)
        return Examples(tokens, places, values)


def _distinct(rng: np.random.Generator, count: int, size: int, chosen: int) -> Any:
    """`count` rows of `chosen` different integers below `size`, in random order."""
    noise = rng.random((count, size), dtype=np.float32)
    found = np.argpartition(noise, chosen - 1, axis=1)[:, :chosen]
    return rng.permuted(found, axis=1)
