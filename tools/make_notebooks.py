"""Write the notebooks of the labs from their READMEs and student files.

    python tools/make_notebooks.py           write labs/notebooks/*.ipynb
    python tools/make_notebooks.py --check   exit 1 if one of them is not up to date

Explanations come from the README, one cell per section. The functions to fill in come from the
student file, one cell per function. This file contains the short check after each function. In an
empty notebook every check reports what is not written yet, and all cells run.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path
from typing import Any

from generated import ROOT, update
from notebook_checks import CHECKS

from kerneltrick.labs import grader

Cell = dict[str, Any]

RUN = {"02": ("The insight",)}  # sections before the functions whose code becomes cells
LEFT_OUT = ("What to do",)
EARLY = "Hints"  # at the end of a README, but before the functions of a notebook
LATE = "Expected behaviour"  # this section and those after it use the functions

HOW = """\
## How to work here

1. Run the cells from top to bottom (Shift + Enter), starting with the next one.
2. Fill in the functions marked `# YOUR CODE HERE` and run their cells again. The docstrings say
   what each function must do.
3. The cell after each function checks it. It says that the function is not written yet, or that it
   looks right, or it shows an `AssertionError` with the line that does not hold.
4. The last cell runs all tests of the lab.

The text of the lab and its tests are in [`{folder}`](../{folder}/README.md)."""

SETUP = """\
import contextlib


@contextlib.contextmanager
def when_written(name=""):
    \"\"\"Run the lines below, and say so if they need a function that is not written yet.\"\"\"
    try:
        yield
    except NotImplementedError as missing:
        print(f"{missing}: not written yet.")
    else:
        if name:
            print(f"{name}: looks right.")"""

TESTS = """\
import sys
import types
from pathlib import Path

FOLDER = Path("../{folder}")  # seen from this notebook


def run_all_tests():
    \"\"\"Run the tests of the lab on the functions of this notebook.\"\"\"
    try:
        import pytest
    except ImportError:
        return "The tests need pytest: %pip install pytest, then run this cell again."
    if not (FOLDER / "tests").is_dir():
        return f"There are no tests in {{FOLDER.resolve()}}: set FOLDER to the folder of the lab."
    for name in ("conftest", "test_{module}"):  # of an earlier run
        sys.modules.pop(name, None)
    lab = sys.modules["{module}"] = types.ModuleType("{module}")
    for name, value in globals().items():
        if not name.startswith("_"):
            setattr(lab, name, value)
    options = ["-q", "--tb=line", "-p", "no:cacheprovider"]
    if pytest.main([str(FOLDER / "tests"), *options]) == 0:
        return "Lab {number}: all tests pass. Done."
    return "Lab {number}: not done yet. Each line above names a test that failed and says why."


print(run_all_tests())"""


def notebook(lab: grader.Lab) -> str:
    """The JSON of a lab's notebook: nbformat 4.5, no outputs, ids that say what a cell is."""
    student = (ROOT / "labs" / lab.folder / lab.file).read_text(encoding="utf-8")
    readme = (ROOT / "labs" / lab.folder / "README.md").read_text(encoding="utf-8")
    prefix, functions = f"lab{lab.number}", [exercise.name for exercise in lab.exercises]
    given, exercises = split_student_file(student, functions)
    intro, sections = split_readme(readme)
    titles = list(sections)
    late = titles[titles.index(LATE) :]
    early = [title for title in titles if title not in late] + [t for t in late if t == EARLY]

    def explained(title: str) -> list[Cell]:
        name = f"{prefix}-{slug(title)}"
        return section_cells(
            name, sections[title], title in late or title in RUN.get(lab.number, ())
        )

    cells = [
        markdown(f"{prefix}-title", intro),
        markdown(f"{prefix}-how", HOW.format(folder=lab.folder)),
        code(f"{prefix}-setup", SETUP),
        code(f"{prefix}-given", given),
    ]
    for title in early:
        cells += explained(title)
    for number, name in enumerate(functions, 1):
        check = f'with when_written("{name}"):\n{indent(CHECKS[lab.number][name])}'
        cells += [
            markdown(f"{prefix}-{slug(name)}-title", f"## {number}. `{name}`"),
            code(f"{prefix}-{slug(name)}", exercises[name]),
            code(f"{prefix}-{slug(name)}-check", check),
        ]
    for title in late:
        if title != EARLY:
            cells += explained(title)
    module = Path(lab.file).stem
    tests = TESTS.format(folder=lab.folder, module=module, number=lab.number)
    cells += [markdown(f"{prefix}-tests-title", "## All tests"), code(f"{prefix}-tests", tests)]
    metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    whole = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, ensure_ascii=False, indent=1) + "\n"


def split_student_file(source: str, functions: list[str]) -> tuple[str, dict[str, str]]:
    """What is given, with the module's imports, and the source of each exercise by name."""
    lines, exercises = source.splitlines(), {}
    tree = ast.parse(source)
    for node in reversed(tree.body):
        first, last = node.lineno - 1, node.end_lineno or node.lineno
        if isinstance(node, ast.FunctionDef) and node.name in functions:
            exercises[node.name] = "\n".join(lines[first:last])
            del lines[first:last]
        elif _is_docstring(node) or _is_future(node):
            del lines[first:last]
    if missing := [name for name in functions if name not in exercises]:
        raise ValueError(f"the student file has no function {missing[0]!r}: run make labs")
    return re.sub(r"\n{3,}", "\n\n\n", "\n".join(lines)).strip(), exercises


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _is_future(node: ast.stmt) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"


def split_readme(text: str) -> tuple[str, dict[str, str]]:
    """What stands before the first section, and the sections by title, heading included."""
    text = re.sub(r"<!--.*?-->\n?", "", text)
    intro, *parts = re.split(r"^(?=## )", text, flags=re.M)
    sections = {part.splitlines()[0].removeprefix("## "): part.strip() for part in parts}
    return intro.strip(), {t: part for t, part in sections.items() if t not in LEFT_OUT}


def section_cells(name: str, text: str, run: bool) -> list[Cell]:
    """A section as one cell, or cut where its code blocks become cells."""
    if not run:
        return [markdown(name, text)]
    cells: list[Cell] = []
    for number, part in enumerate(re.split(r"^```python\n(.*?)^```\n", text, flags=re.M | re.S)):
        own = name if number == 0 else f"{name}-{number}"
        part = re.sub(r"^from \w+ import \*\n+", "", part)
        if number % 2:
            cells.append(code(own, f"with when_written():\n{indent(part)}"))
        elif part.strip():
            part = re.sub(r"\A```text", "It should print:\n\n```text", part)
            cells.append(markdown(own, part.strip()))
    return cells


def indent(text: str) -> str:
    return "\n".join(f"    {line}" if line else "" for line in text.strip().splitlines())


def slug(name: str) -> str:
    """A piece of a cell id: letters, digits and hyphens."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def markdown(name: str, text: str) -> Cell:
    return {"cell_type": "markdown", "id": name, "metadata": {}, "source": lines_of(text)}


def code(name: str, text: str) -> Cell:
    return {
        "cell_type": "code",
        "execution_count": None,
        "id": name,
        "metadata": {},
        "outputs": [],
        "source": lines_of(text),
    }


def lines_of(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the notebooks of the labs.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    parser.add_argument("--to", type=Path, default=ROOT / "labs/notebooks", help="their folder")
    arguments = parser.parse_args(argv)
    made = [grader.labs()[number] for number in CHECKS]
    wanted = {arguments.to / f"{lab.folder}.ipynb": notebook(lab) for lab in made}
    return update(wanted, arguments.check, "notebooks")


if __name__ == "__main__":
    raise SystemExit(main())
