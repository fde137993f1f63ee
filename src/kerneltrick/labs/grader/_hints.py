"""Find the hint that names the mistake behind wrong answers."""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerneltrick.labs.grader import _compare, given
from kerneltrick.labs.grader._lab import Case, Exercise
from kerneltrick.labs.grader._mistakes import Mistake
from kerneltrick.labs.walls import given_functions, resolve


@dataclass
class Outcome:
    """The outcome of one case."""

    case: Case
    right: bool
    kind: str = "answer"
    answer: Any = None
    expected: Any = None
    where: str = ""  # which case it is
    text: str = ""  # what is wrong
    line: int | None = None
    error: str | None = None  # the type of the exception


NEAR_FLOAT16 = 2e-2  # of the largest entry: sums in float16 are that near
FLOAT16 = "your numbers are of float16, which has three digits: compute in float32 or float64"
GIVEN = given_functions(str(given.__file__))
_one_at_a_time = threading.Lock()  # all threads share the warning filters


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Suppress warnings, also while several files are graded at once."""
    with _one_at_a_time, np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def call(function: Callable[..., Any], case: Case) -> Any:
    arguments, options = (resolve(copied(x), GIVEN) for x in (case.arguments, case.options))
    with quietly():
        return function(*arguments, **options)


def copied(tree: Any) -> Any:
    """A copy of the arguments, which a function may change."""
    if isinstance(tree, np.ndarray):
        return tree.copy()
    if isinstance(tree, (list, tuple)):
        return type(tree)(copied(part) for part in tree)
    if isinstance(tree, dict):
        return {key: copied(value) for key, value in tree.items()}
    return tree


def hint(
    exercise: Exercise, outcomes: list[Outcome], wrong: list[Outcome]
) -> tuple[str, int | None]:
    """The hint that names the mistake if it is known, else what is wrong with the first case."""
    first = wrong[0]
    if first.kind in ("missing", "signature", "ended") or first.error == "NotImplementedError":
        return first.text, first.line
    mistake = _recognise(exercise, outcomes, wrong)
    if mistake is not None:
        return mistake.hint, None
    usual = [o for o in outcomes if not _on_the_edge(o)]
    if any(not o.right for o in usual):  # a usual mistake may come with a rare one
        mistake = _recognise(exercise, usual, [o for o in usual if not o.right])
        if mistake is not None:
            return mistake.hint, None
    if first.case.not_finite and all(map(_overflowed, wrong)):
        return first.case.not_finite, first.line
    answered = [o for o in wrong if o.kind == "answer" and o.expected is not None]
    if answered and all(o.kind == "answer" for o in wrong) and len(answered) == len(wrong):
        if all(_compare.swapped(o.answer, o.expected, exercise.tolerance) for o in wrong):
            return "the two returned values are swapped", None
        if _in_float16(answered):
            return FLOAT16, None
        same = [(o.case, o.answer, o.expected) for o in answered]
        if text := _compare.factor(same, exercise.tolerance):
            return (text if len(wrong) == len(outcomes) else f"{first.where}: {text}"), None
    for o in wrong:  # an exception says more than a difference
        if o.kind == "exception":
            return o.text, o.line
    return first.text, first.line


def _in_float16(wrong: list[Outcome]) -> bool:
    """Whether the answers are wrong since float16 computed them: they hold its numbers alone."""
    near = any(_compare.equal(o.answer, o.expected, NEAR_FLOAT16) for o in wrong)
    return near and all(_compare.half(o.answer, o.expected) for o in wrong)


def _recognise(exercise: Exercise, outcomes: list[Outcome], wrong: list[Outcome]) -> Mistake | None:
    """The mistake that gives the same answers to all cases, the right and the wrong ones.

    If some numbers are wrong, cases that expect an exception are ignored: the numbers come first.
    """
    values = [o for o in outcomes if o.case.raises is None]
    compared = values if any(not o.right for o in values) else outcomes
    if all(o.kind == "changed" for o in wrong):
        return None
    for mistake in exercise.mistakes:
        if all(_agrees(mistake, o, exercise) for o in compared):
            return mistake
    return None


def _on_the_edge(outcome: Outcome) -> bool:
    """Whether a case tells a rare mistake: it is meant to, or its answer is not finite."""
    return outcome.case.edge or (not outcome.right and _overflowed(outcome))


def _overflowed(outcome: Outcome) -> bool:
    """Whether the answer to a case is NaN, infinite, or an error that stands for them."""
    if outcome.case.raises is not None:
        return False
    if outcome.error is not None:
        return outcome.error in ("OverflowError", "ZeroDivisionError", "FloatingPointError")
    return outcome.kind == "answer" and _compare.not_finite(outcome.answer, outcome.expected)


def _agrees(mistake: Mistake, outcome: Outcome, exercise: Exercise) -> bool:
    answer = of_mistake(mistake, outcome.case)
    if isinstance(answer, Exception):
        return outcome.error is not None and outcome.error == type(answer).__name__
    if outcome.error is not None or outcome.kind not in ("answer", "changed"):
        return False
    return _compare.equal(outcome.answer, answer, exercise.tolerance, exercise.entrywise)


_answers: dict[tuple[int, int], tuple[Callable[..., Any], Case, Any]] = {}


def of_mistake(mistake: Mistake, case: Case) -> Any:
    """The answer of a mistake, or the exception it raises; computed once for a whole class."""
    return known_answer(mistake.answer, case)


def known_answer(function: Callable[..., Any], case: Case) -> Any:
    """The answer of a function of ours, or the exception it raises, computed once."""
    key = (id(function), id(case))  # they hold arrays, which have no hash; the values keep them
    if key not in _answers:
        _answers[key] = (function, case, answer_of(function, case))
    return _answers[key][2]


def answer_of(function: Callable[..., Any], case: Case) -> Any:
    """The answer of a function, or the exception it raises."""
    try:
        return call(function, case)
    except Exception as error:
        return error
