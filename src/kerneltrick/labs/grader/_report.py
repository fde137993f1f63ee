"""The report about a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from kerneltrick._text import printable

LONGEST_HINT = 600


def _hint(text: str) -> str:
    """A hint, shortened, and without control characters that quoted code may contain."""
    text = text if len(text) <= LONGEST_HINT else text[: LONGEST_HINT - 1] + "…"
    return printable(text)


@dataclass(frozen=True)
class Result:
    """One function: how many of its cases are right, and a hint."""

    name: str
    passed: int
    cases: int
    hint: str | None = None
    line: int | None = None
    cell: int | None = None  # of a notebook

    def __post_init__(self) -> None:
        if self.hint is not None:
            object.__setattr__(self, "hint", _hint(self.hint))

    @property
    def right(self) -> bool:
        return self.passed == self.cases


@dataclass(frozen=True)
class Problem:
    """A problem of the file outside its functions."""

    hint: str
    line: int | None = None
    cell: int | None = None  # of a notebook

    def __post_init__(self) -> None:
        object.__setattr__(self, "hint", _hint(self.hint))


@dataclass(frozen=True)
class Report:
    """The results of a file: its functions, and problems outside them."""

    lab: str
    file: str
    functions: tuple[Result, ...]
    problems: tuple[Problem, ...] = ()

    @property
    def score(self) -> float:
        """The share of cases that are right, averaged over the functions, from 0 to 1."""
        shares = [f.passed / max(1, f.cases) for f in self.functions]
        return sum(shares) / max(1, len(shares))

    @property
    def right(self) -> bool:
        return all(f.right for f in self.functions) and not self.problems

    def to_json(self) -> dict[str, Any]:
        return {
            "lab": self.lab,
            "file": self.file,
            "score": round(self.score, 4),
            "functions": [
                {"name": f.name, "passed": f.passed, "cases": f.cases, "hint": f.hint, **_where(f)}
                for f in self.functions
            ],
            "problems": [{"hint": p.hint, **_where(p)} for p in self.problems],
        }


def _where(what: Result | Problem) -> dict[str, int | None]:
    cell = {} if what.cell is None else {"cell": what.cell}
    return {**cell, "line": what.line}
