"""Right and wrong answers to the labs, one file each: `labNN/right_*.py` and `labNN/wrong_*.py`.

A student's file is the skeleton, all of right_numpy.py behind it, and behind that the file in
question, which may hold some of the functions only. The docstring of a wrong answer is
`function: hint`, part of what the grader must say about it.
"""

import ast
from pathlib import Path

from kerneltrick.labs import grader

ROOT = Path(__file__).resolve().parent.parent.parent
LABS = grader.labs()


def reference(lab):
    return Path(lab.reference.__file__).read_text(encoding="utf-8")


def skeleton(lab):
    return (ROOT / "labs" / lab.folder / lab.file).read_text(encoding="utf-8")


def right_answers(lab):
    """{name: source of the student's file}."""
    return _answers(lab, "right")


def wrong_answers(lab):
    return _answers(lab, "wrong")


def _answers(lab, kind):
    folder = Path(__file__).parent / f"lab{lab.number}"
    usual = (folder / "right_numpy.py").read_text(encoding="utf-8")
    return {
        path.stem: f"{skeleton(lab)}\n\n{usual}\n\n{path.read_text(encoding='utf-8')}"
        for path in sorted(folder.glob(f"{kind}_*.py"))
    }


def intended(lab, name):
    """The function that a wrong answer gets wrong, and the hint it is to be given."""
    text = (Path(__file__).parent / f"lab{lab.number}" / f"{name}.py").read_text(encoding="utf-8")
    function, _, hint = ast.get_docstring(ast.parse(text)).partition(":")
    return function.strip(), " ".join(hint.split())
