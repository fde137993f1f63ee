"""Right and wrong answers to the labs: those of the tables, and the files in `labNN`.

A student's file is the model answer, and behind it the functions in question. The docstring of a
wrong answer in a file is `function: hint`, part of what the grader must say about it.
"""

import ast
import inspect
import re
from dataclasses import dataclass
from pathlib import Path

from kerneltrick.labs import _inputs, grader

ROOT = Path(__file__).resolve().parent.parent.parent
LABS = grader.labs()


def model(lab):
    """The model answer as a student would hand it in: without kerneltrick."""
    text = Path(lab.reference.__file__).read_text(encoding="utf-8")
    used = (x for x in (_inputs.floating, _inputs.in_float64) if "labs._inputs" in text)
    checks = map(inspect.getsource, used)
    return "\n\n".join(
        [re.sub(r"^from (kerneltrick|__future__).*\n", "", text, flags=re.M), *checks]
    )


def skeleton(lab):
    return (ROOT / "labs" / lab.folder / lab.file).read_text(encoding="utf-8")


def right_answers(lab):
    """{name: source of the student's file}."""
    files = _files(lab, "right")
    return {"model": model(lab), **{name: f"{model(lab)}\n\n{x}" for name, x in files.items()}}


@dataclass(frozen=True)
class Wrong:
    """A wrong answer: its source, the function that is wrong, and what the hint must contain."""

    own: str
    function: str
    hint: str


def wrong_answers(lab):
    """{name: wrong answer}: from files, and from the table, there one for each kind of mistake."""
    found = {}
    for name, text in _files(lab, "wrong").items():
        function, _, hint = ast.get_docstring(ast.parse(text)).partition(":")
        found[name] = Wrong(text, function.strip(), " ".join(hint.split()))
    kinds = set()
    for exercise in lab.exercises:
        for mistake in exercise.mistakes:
            kind = exercise.name, re.sub(r"\d+", "0", mistake.hint)
            if kind not in kinds:
                name = f"{exercise.name}: {mistake.hint[:50]}"
                found[name if name not in found else f"{name} {len(found)}"] = Wrong(
                    mistake.source, exercise.name, mistake.hint
                )
            kinds.add(kind)
    return found


def wrong_file(lab, wrong):
    return f"{model(lab)}\n\n{wrong.own}"


def _files(lab, kind):
    folder = Path(__file__).parent / f"lab{lab.number}"
    return {x.stem: x.read_text(encoding="utf-8") for x in sorted(folder.glob(f"{kind}_*.py"))}
