"""What a lab is to the grader: its exercises, the cases each is tried on, the mistakes it knows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any


@dataclass(frozen=True)
class Given:
    """A function that the student's function is given as an argument, by its name in GIVEN.

    The student's process has it too, so that only names travel there.
    """

    name: str


@dataclass(frozen=True)
class Case:
    """One call of an exercise.

    `arguments` and `options` hold NumPy arrays, numbers, strings, None, `Given` functions, and
    lists, tuples and dicts of these. The right answer is what the reference solution returns.
    """

    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    about: str = ""  # completes "wrong …": "for values of another width"
    raises: type[Exception] | None = None  # the right answer is this exception


@dataclass(frozen=True)
class Mistake:
    """A wrong answer that people give: what it returns, and the hint that names it."""

    hint: str  # "your output matches attention without the normaliser"
    answer: Callable[..., Any]  # takes what the exercise takes


@dataclass(frozen=True)
class Growth:
    """Sizes n at which peak memory is measured; it must not grow as n²."""

    case: Callable[[int], Case]
    sizes: tuple[int, int] = (1000, 4000)
    hint: str = "this forms an n×n array: peak memory grows as n²"


@dataclass(frozen=True)
class Exercise:
    """A function for the student to write."""

    name: str
    cases: tuple[Case, ...]
    mistakes: tuple[Mistake, ...] = ()
    tolerance: float = 1e-4  # of the largest entry: float32 arithmetic passes
    memory: Growth | None = None
    returns: bool = True  # else it is graded only for running
    judge: Callable[[Case, Any], str | None] | None = None
    """In place of the comparison with the reference, where several answers are right: None, or what
    is wrong with the answer to a case."""


@dataclass(frozen=True)
class Lab:
    """A lab: its number, its student folder, the module of reference solutions."""

    number: str  # "02"
    folder: str  # "lab02_kernel_trick"
    title: str  # "The kernel trick"
    reference: ModuleType  # kerneltrick.labs.kernel_trick; the student's file has the same name
    exercises: tuple[Exercise, ...]

    @property
    def module(self) -> str:
        """The name of the student's module, which is that of the reference."""
        return self.reference.__name__.rpartition(".")[2]

    @property
    def file(self) -> str:
        """The student's file inside the folder."""
        return f"src/{self.module}.py"
