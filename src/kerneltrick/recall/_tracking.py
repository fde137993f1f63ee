"""State tracking: the answer at every token is the product of all tokens so far."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from typing import Any, ClassVar

import numpy as np

from kerneltrick.attention import check_count
from kerneltrick.recall._task import Examples


@dataclasses.dataclass(frozen=True)
class Parity:
    """Bits; the answer at every bit is whether the number of ones so far is odd.

    Grazzi et al. 2024 show that a layer whose state transitions have only positive eigenvalues
    cannot count modulo 2 over texts of any length. The bits are the tokens 0 and 1, the answers 2
    and 3.

    >>> tokens, places, answers = Parity(length=6).examples(1, seed=0)
    >>> tokens[0].tolist(), (answers[0] - 2).tolist()
    ([1, 1, 1, 0, 0, 0], [1, 0, 1, 1, 1, 1])
    """

    name: ClassVar[str] = "parity"
    length: int = 64

    def __post_init__(self) -> None:
        check_count("parity", "length", self.length, least=1)

    @property
    def vocabulary(self) -> int:
        return 4

    @property
    def chance(self) -> float:
        """The share of answers that guessing gets right."""
        return 0.5

    @property
    def told(self) -> str:
        """The task in a sentence."""
        return (
            f"Each text has {self.length} bits. At every bit the model must say whether the number "
            "of ones so far is even or odd."
        )

    def easier(self) -> tuple[Parity, ...]:
        """Versions with 8, 16, … tokens, and at the end the task itself."""
        return tuple(dataclasses.replace(self, length=n) for n in lengths(self.length))

    def examples(self, count: int, seed: Any) -> Examples:
        """Draw `count` sequences; `seed` is anything that np.random.default_rng takes."""
        bits = np.random.default_rng(seed).integers(2, size=(count, self.length))
        return Examples(bits, everywhere(bits), 2 + bits.cumsum(1) % 2)


@dataclasses.dataclass(frozen=True)
class Permutation:
    """Permutations of `items` things; the answer at every token is their product so far.

    This is the word problem of the symmetric group (Merrill et al. 2024, Grazzi et al. 2024). S₃
    (`items` = 3) has swaps, which one correction with β = 2 can do, and rotations, which need two.
    S₅ is the smallest whose products no shallow model computes at any length; its cycles of five
    things need four. A token moves at most `moved` things (default: all of them): with 2 there
    are only swaps and the permutation that moves nothing.

    >>> tokens, places, answers = Permutation(length=4, items=3).examples(1, seed=0)
    >>> tokens[0].tolist(), (answers[0] - 6).tolist()
    ([5, 3, 3, 1], [5, 1, 2, 4])
    """

    name: ClassVar[str] = "permutation"
    length: int = 32
    items: int = 3
    moved: int | None = None

    def __post_init__(self) -> None:
        check_count("permutation", "length", self.length, least=1)
        if check_count("permutation", "items", self.items, least=2) > 5:
            raise ValueError(
                f"permutation needs 2 to 5 items, not {self.items}: {self.items}! tokens are too "
                "many"
            )
        if self.moved is not None:
            check_count("permutation", "moved", self.moved, least=2)
            if self.moved > self.items:
                raise ValueError(
                    f"permutation cannot move {self.moved} of {self.items} things: moved must be "
                    f"at most {self.items}"
                )

    @property
    def most_moved(self) -> int:
        """The most things that a token moves."""
        return self.items if self.moved is None else self.moved

    @property
    def vocabulary(self) -> int:
        return 2 * math.factorial(self.items)

    @property
    def chance(self) -> float:
        """The share of answers that guessing gets right."""
        return 1 / math.factorial(self.items)

    @property
    def told(self) -> str:
        """The task in a sentence."""
        few = "" if self.most_moved == self.items else f" that move at most {self.moved} of them"
        return (
            f"Each text has {self.length} permutations of {self.items} things{few}. At every one "
            "the model must name the product of all permutations so far."
        )

    def easier(self) -> tuple[Permutation, ...]:
        """Versions that move 2, 3, … things in 8, 16, … tokens, and at the end the task itself.

        Swaps teach what the products are called. After that, other permutations are soon learned.

        >>> [(task.moved, task.length) for task in Permutation(length=12, items=3).easier()]
        [(2, 8), (2, 12), (3, 8), (None, 12)]
        """
        every = itertools.product(range(2, self.most_moved + 1), lengths(self.length))
        made = [dataclasses.replace(self, moved=moved, length=n) for moved, n in every]
        return (*made[:-1], self)

    def examples(self, count: int, seed: Any) -> Examples:
        """Draw `count` sequences; `seed` is anything that np.random.default_rng takes."""
        products, allowed = _products(self.items), _moving(self.items, self.most_moved)
        drawn = np.random.default_rng(seed).integers(len(allowed), size=(count, self.length))
        tokens = allowed[drawn]
        made = [tokens[:, 0]]
        for token in tokens.T[1:]:
            made.append(products[token, made[-1]])
        return Examples(tokens, everywhere(tokens), len(products) + np.stack(made, axis=1))


def _moving(items: int, most: int) -> np.ndarray[Any, Any]:
    """The numbers of the permutations that move at most so many things."""
    every = np.array(list(itertools.permutations(range(items))))
    return np.flatnonzero((every != np.arange(items)).sum(1) <= most)


@functools.cache
def _products(items: int) -> np.ndarray[Any, Any]:
    """The number of the permutation a∘b for the numbers of a and b."""
    every = list(itertools.permutations(range(items)))
    number = {each: i for i, each in enumerate(every)}
    return np.array([[number[tuple(a[i] for i in b)] for b in every] for a in every])


def lengths(longest: int) -> list[int]:
    """8, 16, 32, … and the longest.

    >>> lengths(40)
    [8, 16, 32, 40]
    """
    shorter = itertools.takewhile(lambda n: n < longest, (8 << i for i in itertools.count()))
    return [*shorter, longest]


def everywhere(tokens: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """All places of each sequence."""
    return np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape).copy()
