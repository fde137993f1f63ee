"""The exact counts of one algorithm."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from kerneltrick.costs._order import Relation, leading
from kerneltrick.costs._polynomial import Like, Number, Polynomial, symbol

W = symbol("w")  # bytes per number


@dataclasses.dataclass(frozen=True)
class Cost:
    """Exact counts of an algorithm, as expressions; `at` gives numbers.

    `parts` holds the multiply-adds of each step: multiplications, each with the addition that may
    follow it. A running sum counts as a product with one. `elementwise` counts all other operations
    (exp, maximum, difference, division). `moved` counts the bytes read and written if every step
    reads its arguments and writes its results once. `memory` counts the bytes held in addition to
    inputs and outputs. w is the number of bytes per number.

    >>> from kerneltrick import costs
    >>> cost = costs.softmax()
    >>> print(cost.multiply_adds, "| memory", cost.memory)
    n²·D + n²·M | memory w·n²
    >>> cost.at(n=1000, D=32, M=80).multiply_adds
    112000000
    """

    name: str
    parts: Mapping[str, Polynomial]
    elementwise: Polynomial
    moved: Polynomial
    memory: Polynomial
    relations: tuple[Relation, ...] = ()  # pairs (small, large) of sizes with small ≤ large
    identities: Mapping[str, Polynomial] = dataclasses.field(default_factory=dict)
    constants: tuple[str, ...] = ("w",)  # sizes of tiles and numbers, constant inside O(…)
    whole_chunks: bool = False  # whether n is rounded up to a multiple of C

    @property
    def multiply_adds(self) -> Polynomial:
        return sum(self.parts.values(), Polynomial())

    def subs(self, **values: Like) -> Cost:
        """The same counts with numbers or expressions in place of symbols."""
        kept = tuple(r for r in self.relations if not set(r) & set(values))
        return dataclasses.replace(
            self,
            parts={name: part.subs(**values) for name, part in self.parts.items()},
            elementwise=self.elementwise.subs(**values),
            moved=self.moved.subs(**values),
            memory=self.memory.subs(**values),
            relations=kept,
            identities={s: x.subs(**values) for s, x in self.identities.items() if s not in values},
        )

    def at(self, *, w: int = 4, **values: Number) -> Numbers:
        """The counts for given sizes, with w bytes per number.

        Sizes that follow from others (k = d/h) need not be given. A chunked algorithm works on
        whole chunks, so its n is rounded up to a multiple of C.
        """
        sizes: dict[str, Number] = {"w": w, **values}
        for s, expression in self.identities.items():
            if s not in sizes and all(x in sizes for x in expression.symbols):
                sizes[s] = expression.at(**sizes)
        if self.whole_chunks and "n" in sizes and "C" in sizes:
            sizes["n"] = -(-sizes["n"] // sizes["C"]) * sizes["C"]
        return Numbers(
            parts={name: part.at(**sizes) for name, part in self.parts.items()},
            elementwise=self.elementwise.at(**sizes),
            moved=self.moved.at(**sizes),
            memory=self.memory.at(**sizes),
        )

    def order(self, quantity: str = "multiply_adds") -> Polynomial:
        """The expression inside O(…): the leading terms without constants and tile sizes."""
        return leading(self.growth(quantity), self.relations)

    def growth(self, quantity: str = "multiply_adds") -> Polynomial:
        """The count with its tile sizes set to one."""
        count: Polynomial = getattr(self, quantity)
        return count.subs(**dict.fromkeys(self.constants, 1))

    def to_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "multiply_adds": str(self.multiply_adds),
            "parts": {name: str(part) for name, part in self.parts.items()},
            "elementwise": str(self.elementwise),
            "bytes_moved": str(self.moved),
            "bytes_held": str(self.memory),
            "order": f"O({self.order()})",
        }


@dataclasses.dataclass(frozen=True)
class Numbers:
    """The counts of one algorithm for given sizes."""

    parts: Mapping[str, Number]
    elementwise: Number
    moved: Number
    memory: Number

    @property
    def multiply_adds(self) -> Number:
        return sum(self.parts.values())

    def to_json(self) -> dict[str, Any]:
        return {
            "multiply_adds": _plain(self.multiply_adds),
            "parts": {name: _plain(x) for name, x in self.parts.items()},
            "elementwise": _plain(self.elementwise),
            "bytes_moved": _plain(self.moved),
            "bytes_held": _plain(self.memory),
        }


def _plain(x: Number) -> int | float:
    return x if isinstance(x, int) else float(x)
