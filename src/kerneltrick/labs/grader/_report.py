"""What the grader says of a file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Result:
    """One function: how many of its cases are right, and what to look at."""

    name: str
    passed: int
    cases: int
    hint: str | None = None
    line: int | None = None

    @property
    def right(self) -> bool:
        return self.passed == self.cases


@dataclass(frozen=True)
class Problem:
    """Something wrong with the file outside its functions."""

    hint: str
    line: int | None = None


@dataclass(frozen=True)
class Report:
    """A file: its functions, and problems outside them."""

    lab: str
    file: str
    functions: tuple[Result, ...]
    problems: tuple[Problem, ...] = ()
    walls: tuple[str, ...] = ()

    @property
    def score(self) -> float:
        """The mean over the functions of the share of cases that are right, from 0 to 1."""
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
                {"name": f.name, "passed": f.passed, "cases": f.cases, "hint": f.hint,
                 "line": f.line}
                for f in self.functions
            ],
            "problems": [{"hint": p.hint, "line": p.line} for p in self.problems],
        }  # fmt: skip
