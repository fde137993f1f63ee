"""From wrong answers to the hint that names the mistake."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerneltrick.labs.grader import _compare
from kerneltrick.labs.grader._child import resolve
from kerneltrick.labs.grader._lab import Case, Exercise, Mistake
from kerneltrick.labs.grader._process import by_name


@dataclass
class Outcome:
    """What came of one case."""

    case: Case
    right: bool
    kind: str = "answer"
    answer: Any = None
    expected: Any = None
    where: str = ""  # which case it is
    text: str = ""  # what is wrong
    line: int | None = None
    error: str | None = None  # the type of the exception


_one_at_a_time = threading.Lock()  # filters of warnings are those of all threads


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without warnings, while several files are graded at once."""
    with _one_at_a_time, np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def call(function: Callable[..., Any], case: Case) -> Any:
    arguments, options = (resolve(by_name(x)) for x in (_copy(case.arguments), _copy(case.options)))
    with quietly():
        return function(*arguments, **options)


def _copy(tree: Any) -> Any:
    """Arguments of which a function may change what it likes."""
    if isinstance(tree, np.ndarray):
        return tree.copy()
    if isinstance(tree, (list, tuple)):
        return type(tree)(_copy(part) for part in tree)
    if isinstance(tree, dict):
        return {key: _copy(value) for key, value in tree.items()}
    return tree


def hint(
    exercise: Exercise, outcomes: list[Outcome], wrong: list[Outcome]
) -> tuple[str, int | None]:
    """The hint that names the mistake, if it is a known one; else what is wrong first."""
    first = wrong[0]
    if first.kind in ("missing", "signature", "ended") or first.error == "NotImplementedError":
        return first.text, first.line
    mistake = _recognise(exercise, outcomes, wrong)
    if mistake is not None:
        return mistake.hint, None
    answered = [o for o in wrong if o.kind == "answer" and o.expected is not None]
    if answered and all(o.kind == "answer" for o in wrong) and len(answered) == len(wrong):
        if all(_compare.swapped(o.answer, o.expected, exercise.tolerance) for o in wrong):
            return "the two returned values are swapped", None
        same = [(o.case, o.answer, o.expected) for o in answered]
        if text := _compare.factor(same, exercise.tolerance):
            return (text if len(wrong) == len(outcomes) else f"{first.where}: {text}"), None
    for o in wrong:  # an exception says more than a difference
        if o.kind == "exception":
            return o.text, o.line
    return first.text, first.line


def _recognise(exercise: Exercise, outcomes: list[Outcome], wrong: list[Outcome]) -> Mistake | None:
    """The mistake that gives the same answers to all cases, right ones and wrong ones.

    Whoever gets numbers wrong may also have left out an exception: the numbers come first.
    """
    values = [o for o in outcomes if o.case.raises is None]
    compared = values if any(not o.right for o in values) else outcomes
    if all(o.kind == "changed" for o in wrong):
        return None
    for mistake in exercise.mistakes:
        if all(_agrees(mistake, o, exercise.tolerance) for o in compared):
            return mistake
    return None


def _agrees(mistake: Mistake, outcome: Outcome, tolerance: float) -> bool:
    answer = of_mistake(mistake, outcome.case)
    if isinstance(answer, Exception):
        return outcome.error is not None and outcome.error == type(answer).__name__
    if outcome.error is not None or outcome.kind not in ("answer", "changed"):
        return False
    return _compare.equal(outcome.answer, answer, tolerance)


_mistaken: dict[tuple[int, int], tuple[Mistake, Case, Any]] = {}


def of_mistake(mistake: Mistake, case: Case) -> Any:
    """What a mistake answers, or the exception it raises; computed once for a whole class."""
    key = (id(mistake), id(case))  # they hold arrays, which have no hash; the values keep them
    if key not in _mistaken:
        try:
            answer = call(mistake.answer, case)
        except Exception as error:
            answer = error
        _mistaken[key] = (mistake, case, answer)
    return _mistaken[key][2]
