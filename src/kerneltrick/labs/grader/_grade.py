"""Grade a file: call every function on every case, and find a hint for each."""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from kerneltrick.labs import walls
from kerneltrick.labs.grader import _compare, given
from kerneltrick.labs.grader._hints import Outcome, hint, known_answer, quietly
from kerneltrick.labs.grader._lab import Case, Exercise, Growth, Lab
from kerneltrick.labs.grader._notebook import LARGEST_NOTEBOOK, Code, read_notebook
from kerneltrick.labs.grader._report import Problem, Report, Result
from kerneltrick.labs.grader._shipped import shipped_cases
from kerneltrick.labs.walls import Died, Limits, Loaded, Slow, Unreadable, Worker, arrays, whole

LARGEST_FILE = 2**20
MOST_TRIES = 4  # to load a file, each time without the statement that ended the last one
NOT_THERE = ("the function is missing", "not written yet")
N_BY_N = "this forms an n×n array: peak memory grows as n²."
MOST_GROWTH = 5  # times the work for each token, at 16 times the length: n² has 16, and n√n has 4
_ENDLESS = "never ends, or takes too long"
Progress = Callable[[str, int, int], None]
Placed = TypeVar("Placed", Result, Problem)


class Server(walls.Server):
    """A server whose workers have the functions that exercises are given."""

    def __init__(self, limits: Limits | None = None) -> None:
        super().__init__(limits, Path(str(given.__file__)))


@dataclass
class _Grading:
    lab: Lab
    source: bytes
    filename: str
    server: walls.Server
    notebook: Code | None = None
    without: list[int] | None = None
    worker: Worker | None = None
    used: float = 0.0
    loaded: Loaded = field(default_factory=Loaded)
    problems: list[Problem] = field(default_factory=list)

    def start(self) -> Worker:
        """A worker with the file loaded. Later tries leave out the statement that ended it."""
        while self.worker is None:
            worker = self.server.worker()
            try:
                self.loaded = worker.load(self.source, self.filename, self.without)
                self.worker = worker
            except (Slow, Died, Unreadable) as error:
                worker.stop()
                self.used += worker.used
                line = getattr(error, "line", None)
                hint = f"{_ending(error)} while the file is loaded{self.at(line)}"
                self.problems.append(Problem(hint, line))
                left_out = self.without or []
                if line in left_out or len(left_out) + 1 >= MOST_TRIES:
                    raise
                if line is None and self.without is not None:
                    raise
                self.without = left_out if line is None else [*left_out, line]
        return self.worker

    def end(self) -> None:
        if self.worker is not None:
            self.worker.stop()
            self.used += self.worker.used
            self.worker = None

    def at(self, line: int | None) -> str:
        """Where, with the source line."""
        if line is None:
            return ""
        lines = re.split("\r\n|\r|\n", self.source.decode(errors="replace"))
        text = lines[line - 1].strip() if 0 < line <= len(lines) else ""
        cell, line = self.place(line)
        where = f"line {line}" if cell is None else f"cell {cell}, line {line}"
        return f" ({where}: {text[:80]})" if text else f" ({where})"

    def place(self, line: int) -> tuple[int | None, int]:
        """The cell of a notebook, and the line in it or in the file."""
        return (None, line) if self.notebook is None else self.notebook.place(line)

    def placed(self, what: Placed) -> Placed:
        """A result or a problem, with its line as a student counts."""
        if what.line is None:
            return what
        cell, line = self.place(what.line)
        return replace(what, cell=cell, line=line)

    def spent(self) -> float:
        return self.used + (self.worker.used if self.worker else 0.0)


def _ending(error: BaseException) -> str:
    if isinstance(error, Slow):
        return _ENDLESS
    if isinstance(error, Died):
        code = error.code
        if code > 128:
            return f"ends the process (signal {code - 128})"
        return f"ends the process (exit code {code})"
    return "breaks the connection to the grader"


def grade(
    lab: Lab,
    source: bytes,
    name: str | None = None,
    server: walls.Server | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
    notebook: bool = False,
) -> Report:
    """Grade a student's file, given as its bytes: Python, or a Jupyter notebook.

    In a notebook, only definitions, imports and assignments are executed, in the order of cells.

    >>> from kerneltrick.labs import grader
    >>> report = grader.grade(grader.labs()["02"], b"def simple_feature_map(x):\\n    return x\\n")
    >>> report.functions[0].right, report.functions[1].hint
    (True, 'the function is missing')
    """
    if server is None:
        with Server(limits) as own:
            return grade(lab, source, name, own, progress=progress, notebook=notebook)
    filename = lab.file.rpartition("/")[2]
    label = name or filename
    code = None
    if notebook:
        try:
            code = read_notebook(source)
        except ValueError as error:
            return _nothing(lab, label, Problem(str(error)))
        source = code.source
    if len(source) > LARGEST_FILE:
        problem = Problem(f"the file has {len(source):,} bytes; at most {LARGEST_FILE:,} are read")
        return _nothing(lab, label, problem)
    grading = _Grading(lab, source, filename, server, code, [] if code else None)
    try:
        try:
            grading.start()
        except (Slow, Died, Unreadable):
            return _nothing(lab, label, *map(grading.placed, grading.problems))
        broken, whole = _sort_problems(grading)
        results = []
        for at, exercise in enumerate(lab.exercises):
            if progress is not None:
                progress(f"{label}: {exercise.name}", at, len(lab.exercises))
            result = broken.get(exercise.name) or _grade_exercise(grading, exercise)
            results.append(result)
    finally:
        grading.end()
    results = [_blame(result, results, grading.loaded.uses) for result in results]
    problems = map(grading.placed, (*grading.problems, *whole))
    return Report(lab.number, label, tuple(map(grading.placed, results)), tuple(problems))


def grade_file(
    lab: Lab, path: Path, name: str, server: walls.Server, progress: Progress | None = None
) -> Report:
    """Grade a Python file or a notebook. If it cannot be read, the report says so."""
    notebook = path.suffix == ".ipynb"
    try:
        with path.open("rb") as file:
            source = file.read((LARGEST_NOTEBOOK if notebook else LARGEST_FILE) + 1)
    except OSError as error:
        return _nothing(lab, name, Problem(f"the file cannot be read: {error.strerror}"))
    return grade(lab, source, name, server, progress=progress, notebook=notebook)


def _nothing(lab: Lab, label: str, *problems: Problem) -> Report:
    hint = problems[0].hint if problems else "the file cannot be loaded"
    found = (Result(e.name, 0, _count(lab, e), hint) for e in lab.exercises)
    return Report(lab.number, label, tuple(found), problems)


def _count(lab: Lab, exercise: Exercise) -> int:
    """The cases of an exercise. The calls of the lab's own tests are one, and so are the costs."""
    shipped = bool(shipped_cases(lab.number)[exercise.name])
    return len(exercise.cases) + shipped + (exercise.growth is not None)


def _sort_problems(grading: _Grading) -> tuple[dict[str, Result], list[Problem]]:
    """Problems of loading: those of an exercise, by its name, and those of the whole file."""
    lab = grading.lab
    exercises = {exercise.name: exercise for exercise in lab.exercises}
    broken: dict[str, Result] = {}
    whole: list[Problem] = []
    for problem in grading.loaded.problems:
        line = problem["line"]
        hint = f"{problem['type']}: {_first_line(problem['text'])}{grading.at(line)}"
        name = problem["name"]
        if problem["all"]:
            whole.append(Problem(hint, line))
            broken = {e: Result(e, 0, _count(lab, x), hint, line) for e, x in exercises.items()}
        elif name in exercises:
            broken.setdefault(name, Result(name, 0, _count(lab, exercises[name]), hint, line))
        elif problem["type"] == "SystemExit":
            whole.append(Problem(f"calls sys.exit outside the functions{grading.at(line)}", line))
        else:
            whole.append(Problem(hint, line))
    return broken, whole


def _first_line(text: str) -> str:
    return (text.splitlines() or [""])[0][:200]


def _grade_exercise(grading: _Grading, exercise: Exercise) -> Result:
    """Its cases; if they are right, the calls of the lab's own tests; then how its costs grow."""
    cases = _count(grading.lab, exercise)
    outcomes = _try_all(grading, exercise, exercise.cases)
    passed = sum(outcome.right for outcome in outcomes)
    if passed == len(exercise.cases):
        shipped = _try_all(grading, exercise, shipped_cases(grading.lab.number)[exercise.name])
        passed += bool(shipped) and all(outcome.right for outcome in shipped)
        outcomes += shipped
    wrong = [outcome for outcome in outcomes if not outcome.right]
    if wrong:
        found, line = hint(exercise, outcomes, wrong)
        return Result(exercise.name, passed, cases, _reordered(grading, exercise) or found, line)
    if exercise.growth is None:
        return Result(exercise.name, passed, cases)
    text, line = _grade_growth(grading, exercise, exercise.growth)
    return Result(exercise.name, passed + (text is None), cases, text, line)


def _try_all(grading: _Grading, exercise: Exercise, cases: tuple[Case, ...]) -> list[Outcome]:
    """The outcomes of cases, up to one after which no other can be right."""
    outcomes: list[Outcome] = []
    for at, case in enumerate(cases):
        if grading.spent() > grading.server.limits.total:
            text = "not graded: the time for the whole file is used up"
            return [*outcomes, Outcome(case, False, "ended", text=text)]
        outcomes.append(_try(grading, exercise, case, at))
        if outcomes[-1].kind in ("missing", "signature", "ended"):
            break
    return outcomes


def _reordered(grading: _Grading, exercise: Exercise) -> str | None:
    """The hint for the right parameters in the wrong order."""
    right = list(inspect.signature(getattr(grading.lab.reference, exercise.name)).parameters)
    found = grading.loaded.parameters.get(exercise.name, right)
    if found == right or sorted(found) != sorted(right):
        return None
    return f"its parameters are ({', '.join(found)}); the order must be ({', '.join(right)})"


def _try(grading: _Grading, exercise: Exercise, case: Case, number: int) -> Outcome:
    """One case."""
    try:
        fields, answer = grading.start().call(exercise.name, case.arguments, case.options)
        return _judge(grading, exercise, case, number, fields, answer)
    except (Slow, Died, Unreadable) as error:
        line = getattr(error, "line", None)
        grading.end()
        text = _ending(error) + grading.at(line)
        return Outcome(case, False, "ended", text=text, line=line)


def _judge(
    grading: _Grading, exercise: Exercise, case: Case, number: int, fields: Any, answer: Any
) -> Outcome:
    kind, line = fields.get("kind"), fields["line"]
    where = _where(grading.lab, exercise, case, number)
    if kind == "missing":
        return Outcome(case, False, kind, text=NOT_THERE[0] + _misspelt(grading, exercise.name))
    if kind == "signature":
        signature, text = fields.get("signature"), fields.get("text")
        text = f"{exercise.name}{signature} cannot be called with these arguments: {text}"
        line = grading.loaded.lines.get(exercise.name)
        return Outcome(case, False, kind, text=text[:300], line=line)
    if kind == "exception":
        bases = fields.get("bases")
        expects = case.raises.__name__ if case.raises else None
        right = isinstance(bases, list) and expects in bases
        error = str(fields.get("type"))
        text = _exception(error, str(fields.get("text")), grading.at(line))
        text = _about_batches(grading, exercise, case, line) or text
        if expects is not None and error != "NotImplementedError":
            text += f"; {where}, where {expects} must be raised"
        return Outcome(case, right, kind, text=text, line=line, error=error)
    outcome = Outcome(case, False, "answer", answer, where=where)
    if case.raises is not None:
        outcome.text = f"{where}: returns {_compare.kind(answer)} where "
        outcome.text += f"{case.raises.__name__} must be raised"
        return outcome
    changed = fields.get("changed")
    if not exercise.returns:
        outcome.text = ""
    elif exercise.judge is not None:
        outcome.text = _ask_judge(exercise, case, where, answer) or ""
    else:
        outcome.expected = known_answer(getattr(grading.lab.reference, exercise.name), case)
        outcome.answer = answer = _compare.unpacked(answer, outcome.expected)
        how = exercise.tolerance, exercise.entrywise
        if not _compare.equal(answer, outcome.expected, *how):
            outcome.text = _compare.form(answer, outcome.expected) or (
                f"{where}: " + _compare.values(answer, outcome.expected, *how)
            )
    if not outcome.text and isinstance(changed, list) and changed:
        outcome.kind = "changed"
        outcome.text = f"changes {_argument(grading.lab, exercise, case, changed[0])} in place"
    outcome.right = not outcome.text
    return outcome


def _ask_judge(exercise: Exercise, case: Case, where: str, answer: Any) -> str | None:
    assert exercise.judge is not None
    if answer is None:
        return "returns None: is a `return` missing?"
    try:
        with quietly():
            return exercise.judge(case, answer)
    except Exception:  # the answer has not the form that the judge looks for
        return f"{where}: returns {_compare.kind(answer)}, which is not the expected form"


def _where(lab: Lab, exercise: Exercise, case: Case, number: int) -> str:
    """The case in words: what it is about, else the shapes of its arrays."""
    if case.about:
        return f"wrong {case.about}"
    names = inspect.signature(getattr(lab.reference, exercise.name)).parameters
    pairs = [*zip(names, case.arguments, strict=False), *case.options.items()]
    shapes = [f"{name} of shape {x.shape}" for name, x in pairs if _compare.is_array(x)]
    return f"wrong for {', '.join(shapes)}" if shapes else f"wrong in case {number + 1}"


def _misspelt(grading: _Grading, name: str) -> str:
    """The hint that another function of the file may be meant, if there is one."""
    exercises = {exercise.name for exercise in grading.lab.exercises}
    others = [x for x in grading.loaded.lines if x not in exercises]
    near = difflib.get_close_matches(name, others, 1, cutoff=0.85)
    return f"; did you mean {near[0]}?" if near else ""


def _exception(kind: str, text: str, at: str) -> str:
    if kind == "NotImplementedError":
        return NOT_THERE[1]
    if kind == "MemoryError":
        return f"takes too much memory{at}"
    if kind in ("SystemExit", "KeyboardInterrupt"):
        called = "calls sys.exit" if kind == "SystemExit" else "raises KeyboardInterrupt"
        return f"{called}{at}"
    return f"{kind}: {_first_line(text)}{at}" if text else f"{kind}{at}"


_REVERSED = re.compile(r"[\w)\]]\.T\b|\.transpose\(\s*\)|np\.transpose\(\s*[\w.]+\s*\)")
_UNPACKED = re.compile(r"^\s*\(?\w+\s*,\s*\w+\s*\)?\s*=\s*.*\.shape\b")


def _about_batches(grading: _Grading, exercise: Exercise, case: Case, line: int | None) -> str:
    """The hint for code that takes arrays (n, d) only, where NumPy's own message would not help."""
    shapes = [x.shape for x in arrays([case.arguments, case.options])]
    batched = [shape for shape in shapes if len(shape) > 2]
    first = grading.loaded.lines.get(exercise.name)
    if not batched or line is None or first is None or not first <= line:
        return ""
    lines = re.split("\r\n|\r|\n", grading.source.decode(errors="replace"))[first - 1 : line]
    shape = ", ".join(map(str, batched[0]))
    if _UNPACKED.search(lines[-1]):
        return (
            f"the arrays can have batch dimensions in front, here ({shape}): take the last two "
            f"lengths, .shape[-2:]{grading.at(line)}"
        )
    at = next((at for at, text in enumerate(lines, first) if _REVERSED.search(text)), None)
    if at is None:
        return ""
    return (
        f"the arrays can have batch dimensions in front, here ({shape}), and .T reverses all axes: "
        f"np.swapaxes(x, -1, -2) exchanges the last two{grading.at(at)}"
    )


def _argument(lab: Lab, exercise: Exercise, case: Case, number: Any) -> str:
    """The name of the argument that holds the array of this number."""
    names = list(inspect.signature(getattr(lab.reference, exercise.name)).parameters)
    trees = [*zip(names, case.arguments, strict=False), *case.options.items()]
    owners = [name for name, tree in trees for _ in arrays(tree)]
    known = type(number) is int and 0 <= number < len(owners)
    return f"its argument {owners[number]}" if known else "an argument"


def _grade_growth(
    grading: _Grading, exercise: Exercise, growth: Growth
) -> tuple[str | None, int | None]:
    """The hint if memory or work grow as n², else None; and its line."""
    times = growth.work[1] // growth.work[0]
    more = _grows_in_work(grading, exercise, growth, MOST_GROWTH * times)
    text, line = _grade_memory(grading, exercise, growth)
    slow = text is not None and text.startswith(_ENDLESS)
    if more and (text is None or slow):
        text = f"the time grows as n²: {times} times the length takes more than "
        return f"{text}{MOST_GROWTH * times} times the operations. {growth.advice}", None
    return text, line


def _grows_in_work(grading: _Grading, exercise: Exercise, growth: Growth, times: int) -> bool:
    """Whether the longest input takes more than so many times the operations of the shortest."""
    operations = most = 0
    grading.end()
    try:
        for n in growth.work:
            case = growth.case(n)
            most = times * operations
            fields, _ = grading.start().call(exercise.name, case.arguments, case.options, most=most)
            operations = max(1, whole(fields.get("operations")) or 0)
    except (Slow, Died, Unreadable):  # counting is slow: whether the call is, is measured without
        return False
    finally:
        grading.end()
    return operations > most


def _grade_memory(
    grading: _Grading, exercise: Exercise, growth: Growth
) -> tuple[str | None, int | None]:
    """Measure peak memory at two sizes in a fresh process. None if it is right."""
    small, large = growth.memory
    peaks = []
    try:
        worker = grading.start()
        for n in (
            growth.work[0],
            small,
            large,
        ):  # at first what is done once, as an import
            before = worker.peak()
            case = growth.case(n)
            fields, _ = worker.call(exercise.name, case.arguments, case.options, trace=True)
            if fields.get("type") == "MemoryError":
                return f"{N_BY_N} {growth.advice}", None
            if fields.get("kind") != "answer":
                text = _exception(str(fields.get("type")), str(fields.get("text")), "")
                return f"for n = {n}: {text}", None
            peaks.append((whole(fields.get("peak")) or 0, worker.peak() - before))
    except (Slow, Died, Unreadable) as error:
        return f"{_ending(error)} for n = {large}", getattr(error, "line", None)
    finally:
        grading.end()
    # A byte per pair is a mask; float32 takes four. The process's own peak is not the student's
    # to report.
    traced = peaks[2][0] > large**2 and peaks[2][0] > 2 * peaks[1][0] * large / small
    resident = peaks[2][1] > 3 * large**2
    return (f"{N_BY_N} {growth.advice}", None) if traced or resident else (None, None)


def _blame(result: Result, results: list[Result], uses: dict[str, set[str]]) -> Result:
    """Add which function to fix first if a function is wrong because it uses a wrong one."""
    if result.right or result.hint is None:
        return result
    wrong = {r.name for r in results if not r.right} - {result.name}
    for used in sorted(_reached(result.name, uses) & wrong):
        if not _reached(used, uses) & (wrong - {used}):
            hint = f"calls {used}, which is not right yet; {result.hint}"
            return Result(result.name, result.passed, result.cases, hint, result.line)
    return result


def _reached(name: str, uses: dict[str, set[str]]) -> set[str]:
    """The functions that a function uses, and those that they use."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        new = uses.get(waiting.pop(), set()) & uses.keys() - found
        found |= new
        waiting += new
    return found - {name}
