"""The grader: runs a student's file in a separate process and says what is wrong with it."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from dataclasses import replace
from importlib import resources

from kerneltrick.labs.grader._find import Found, Submission, find_lab, find_submissions, recognise
from kerneltrick.labs.grader._grade import NOT_THERE, Server, grade, grade_file
from kerneltrick.labs.grader._lab import Case, Exercise, Given, Growth, Lab
from kerneltrick.labs.grader._mistakes import Mistake, read_mistakes
from kerneltrick.labs.grader._report import Problem, Report, Result
from kerneltrick.labs.grader._start import folder, has_notebook, page, start
from kerneltrick.labs.walls import Cancelled, Limits, Refused

__all__ = [
    "NOT_THERE",
    "Cancelled",
    "Case",
    "Exercise",
    "Found",
    "Given",
    "Growth",
    "Lab",
    "Limits",
    "Mistake",
    "Problem",
    "Refused",
    "Report",
    "Result",
    "Server",
    "Submission",
    "find_lab",
    "find_submissions",
    "folder",
    "grade",
    "grade_file",
    "has_notebook",
    "labs",
    "page",
    "recognise",
    "start",
]


@functools.cache
def labs() -> dict[str, Lab]:
    """Return all labs by number.

    >>> labs()["02"].title
    'The kernel trick'
    """
    names = sorted(m.name for m in pkgutil.iter_modules(__path__) if m.name.startswith("lab"))
    found = [_load(name) for name in names]
    return {lab.number: lab for lab in found}


def _load(name: str) -> Lab:
    """A lab: its cases from the module of this name, its mistakes from the table beside it."""
    lab: Lab = importlib.import_module(f"{__name__}.{name}").LAB
    table = resources.files(__name__).joinpath(f"{name}.txt")
    mistakes = read_mistakes(table.read_text(encoding="utf-8"), lab.reference)
    exercises = (replace(e, mistakes=mistakes.get(e.name, ())) for e in lab.exercises)
    return replace(lab, exercises=tuple(exercises))
