"""How the grader describes a lab: its exercises, their cases, and the mistakes it recognises."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from kerneltrick.labs.grader._mistakes import Mistake
from kerneltrick.labs.walls import Given as Given

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Case:
    """One call of an exercise.

    `arguments` and `options` hold NumPy arrays, numbers, strings, None, `Given` functions (those of
    given.py), and lists, tuples and dicts of these. The right answer is that of the model answer.
    """

    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    about: str = ""  # completes "wrong …": "for values of another width"
    raises: type[Exception] | None = None  # the right answer is this exception
    not_finite: str = ""  # the hint for NaN or infinity, which a right solution never gives here
    edge: bool = False  # tells a rare mistake: a usual one is known without it


@dataclass(frozen=True)
class Growth:
    """Two sizes n at which operations are counted, and two at which peak memory is measured.

    Neither may grow as n².
    """

    case: Callable[[int], Case]
    work: tuple[int, int] = (100, 1600)
    memory: tuple[int, int] = (1000, 4000)
    advice: str = ""  # completes the hint: "Take φ(K)ᵀV first"


@dataclass(frozen=True)
class Exercise:
    """A function for the student to write."""

    name: str
    cases: tuple[Case, ...]
    mistakes: tuple[Mistake, ...] = ()
    tolerance: float = 1e-4  # of the largest entry: float32 arithmetic passes
    entrywise: bool = False  # the tolerance is a share of each entry, not of the largest one
    growth: Growth | None = None
    returns: bool = True  # else it is graded only for running
    judge: Callable[[Case, Any], str | None] | None = None
    """Used instead of the comparison with the reference if several answers are right. It returns
    None, or what is wrong with the answer to a case."""


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
        """The name of the student's module, the same as that of the reference."""
        return self.reference.__name__.rpartition(".")[2]

    @property
    def file(self) -> str:
        """The student's file inside the folder."""
        return f"src/{self.module}.py"
