"""The calls that the tests in a lab's folder make, as cases: what they fail gets no full marks.

The tests run once with the model answer, which writes down its arguments. pytest is not needed: of
it they use parameters, `approx` and `raises` only.
"""

from __future__ import annotations

import builtins
import contextlib
import functools
import inspect
import itertools
from collections.abc import Callable, Iterable, Iterator
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from kerneltrick.labs.grader._hints import GIVEN, copied, quietly
from kerneltrick.labs.grader._lab import Case, Given, Lab
from kerneltrick.labs.grader._start import folder
from kerneltrick.labs.walls import arrays

MOST_NUMBERS = 2**18  # in the arguments of a call; what is larger is left to the tests themselves
_PROBE = np.array([[-1.5, 0.25, 2.0], [0.0, -0.5, 1.0]])


@functools.cache
def shipped_cases(number: str) -> dict[str, tuple[Case, ...]]:
    """The cases of each exercise of a lab, by its name.

    >>> shipped_cases("02")["verify_associativity"][0].about
    'in test_holds_exactly_for_whole_numbers, a test of the lab'
    """
    from kerneltrick.labs.grader import labs

    lab = labs()[number]
    found: dict[str, list[Case]] = {exercise.name: [] for exercise in lab.exercises}
    with quietly():
        for path in sorted((folder(lab) / "tests").glob("test_*.py")):
            _run_tests(lab, compile(path.read_text(encoding="utf-8"), str(path), "exec"), found)
    return {name: tuple(cases) for name, cases in found.items()}


def _run_tests(lab: Lab, code: Any, found: dict[str, list[Case]]) -> None:
    """Run the tests of a file; the calls of exercises are added to `found`."""
    running = ""  # the test

    def recorded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def record(*arguments: Any, **options: Any) -> Any:
            about = f"in {running}, a test of the lab"
            given = _given(copied(arguments)), _given(copied(options))
            small = sum(x.size for x in arrays(list(given))) <= MOST_NUMBERS
            try:
                answer, error = function(*arguments, **options), None
            except Exception as raised:
                answer, error = None, raised
            if small:
                kind = None if error is None else type(error)
                found[name].append(Case(*given, about=about, raises=kind, edge=True))
            if error is not None:
                raise error
            return answer

        return record

    answers = ModuleType(lab.module)
    answers.__dict__.update(vars(lab.reference))
    for exercise in lab.exercises:
        model = getattr(lab.reference, exercise.name)
        silent = model if exercise.returns else lambda *_, **__: None  # it would print
        setattr(answers, exercise.name, recorded(exercise.name, silent))
    instead = {lab.module: answers, "pytest": _PYTEST}

    def imported(name: str, *more: Any) -> Any:
        return instead[name] if name in instead else builtins.__import__(name, *more)

    space: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": imported}}
    space["__name__"] = "tests"
    exec(code, space)
    for owner in [x for name, x in space.items() if name.startswith("Test")]:
        for running, test in vars(owner).items():
            if running.startswith("test_"):
                for options in _parameters(test):
                    with contextlib.suppress(AssertionError):  # of another NumPy: the call counts
                        test(owner(), **options)


def _given(tree: Any) -> Any:
    """The arguments with functions by the names that they have in given.py."""
    if isinstance(tree, (list, tuple)):
        return type(tree)(map(_given, tree))
    if isinstance(tree, dict):
        return {key: _given(value) for key, value in tree.items()}
    if not callable(tree):
        return tree
    features = getattr(tree, "__wrapped__", tree)(_PROBE)
    for name, function in GIVEN.items():
        same = function(_PROBE)
        if same.shape == features.shape and np.allclose(same, features):
            return Given(name)
    raise LookupError(f"a test of the lab passes the function {tree}, which given.py does not hold")


# --- what the tests use of pytest ----------------------------------------------------------------


def _parametrize(names: str | tuple[str, ...], values: Iterable[Any]) -> Callable[..., Any]:
    several = [x.strip() for x in names.split(",")] if isinstance(names, str) else [*names]

    def mark(test: FunctionType) -> FunctionType:
        rows = [value if len(several) > 1 else (value,) for value in values]
        known = getattr(test, "parameters", ())
        test.__dict__["parameters"] = (*known, [dict(zip(several, r, strict=True)) for r in rows])
        return test

    return mark


def _parameters(test: FunctionType) -> Iterator[dict[str, Any]]:
    """The arguments of each run of a test."""
    fixtures = {"monkeypatch": SimpleNamespace(setenv=lambda *_: None)}
    asked = {x: fixtures[x] for x in inspect.signature(test).parameters if x in fixtures}
    for rows in itertools.product(*getattr(test, "parameters", ())):
        yield {**asked, **{name: value for row in rows for name, value in row.items()}}


class _Anything:
    """Equal to everything: the tests are not asked what they think of the model answer."""

    def __eq__(self, other: object) -> bool:
        return True


@contextlib.contextmanager
def _raises(error: type[Exception], match: str = "") -> Iterator[None]:
    with contextlib.suppress(error):
        yield


_PYTEST = SimpleNamespace(
    approx=lambda *_, **__: _Anything(),
    raises=_raises,
    mark=SimpleNamespace(parametrize=_parametrize, filterwarnings=lambda *_: lambda test: test),
)
