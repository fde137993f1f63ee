"""Write the student files of the labs from their reference solutions, and the files around them.

    python tools/make_labs.py           write src/*.py, pyproject.toml and tests/conftest.py
    python tools/make_labs.py --check   exit 1 if one of them is not up to date

Exercises keep their signature and docstring but lose their body. Students get all other public
functions complete. Parts of the solution are left out: imports of kerneltrick, and functions whose
names begin with an underscore.
"""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

from generated import ROOT, update

from kerneltrick.labs import grader

PROJECT = """\
# The packages that the lab needs, for `uv run pytest tests/`.
[project]
name = "{name}"
version = "0"
requires-python = ">=3.10"
dependencies = ["numpy>=2.0", "pytest>=8.3"]

[tool.pytest.ini_options]
testpaths = ["tests"]
"""

CONFTEST = '''\
"""Let the tests import your functions from the file in src/, or else from the notebook."""

import ast
import json
import re
import sys
import types
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent
FILE = FOLDER / "src" / "{module}.py"
NOTEBOOK = FOLDER / "{folder}.ipynb"
ASSIGNMENTS = (ast.Assign, ast.AnnAssign)
KEPT = (ast.FunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom, *ASSIGNMENTS)


def load_notebook():
    """A module with the functions, imports and assignments of the notebook."""
    module = types.ModuleType(FILE.stem)
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    for number, cell in enumerate(cells, 1):
        text = "".join(cell["source"])
        if cell["cell_type"] != "code" or text.startswith("%%"):
            continue
        where = f"{{NOTEBOOK.name}}, cell {{number}}"
        text = re.sub(r"^(\\s*)[%!?].*$", r"\\1pass", text, flags=re.M)
        for statement in ast.parse(text, where).body:
            if isinstance(statement, KEPT):
                try:
                    exec(compile(ast.Module([statement], []), where, "exec"), module.__dict__)
                except Exception:
                    if not isinstance(statement, ASSIGNMENTS):
                        raise
    return module


sys.path.insert(0, str(FILE.parent))
if not FILE.exists() and FILE.stem not in sys.modules:
    if not NOTEBOOK.exists():
        raise FileNotFoundError(f"there is neither {{FILE}} nor {{NOTEBOOK}}")
    sys.modules[FILE.stem] = load_notebook()
'''


def skeleton(source: str, exercises: tuple[str, ...]) -> str:
    """The student's version of a reference module."""
    lines = source.splitlines()
    tree = ast.parse(source)
    known = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    if missing := [name for name in exercises if name not in known]:
        raise ValueError(f"no function {missing[0]!r}; the module has {', '.join(sorted(known))}")
    for node in reversed(tree.body):
        first, last = node.lineno - 1, node.end_lineno
        if _belongs_to_solution(node):
            del lines[first:last]
        elif isinstance(node, ast.FunctionDef) and node.name in exercises:
            if ast.get_docstring(node) is None:
                raise ValueError(f"{node.name} needs a docstring: it is all the student gets")
            body = ["    # YOUR CODE HERE", f'    raise NotImplementedError("{node.name}")']
            lines[node.body[0].end_lineno : last] = body
    text = "\n".join(lines).strip() + "\n"
    text = re.sub(r"\n{3,}(?=def |class |@)", "\n\n\n", text)
    return re.sub(r"\n{3,}(?!def |class |@)", "\n\n", text)


def _belongs_to_solution(node: ast.stmt) -> bool:
    if isinstance(node, ast.ImportFrom):
        return (node.module or "").split(".")[0] == "kerneltrick"
    if isinstance(node, ast.Import):
        return any(alias.name.split(".")[0] == "kerneltrick" for alias in node.names)
    return isinstance(node, ast.FunctionDef) and node.name.startswith("_")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the student files of the labs.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    parser.add_argument("--to", type=Path, default=ROOT / "labs", help="the labs folder")
    arguments = parser.parse_args(argv)
    wanted = {}
    for lab in grader.labs().values():
        source = Path(str(lab.reference.__file__)).read_text(encoding="utf-8")
        names = tuple(exercise.name for exercise in lab.exercises)
        folder = arguments.to / lab.folder
        wanted[folder / lab.file] = skeleton(source, names)
        conftest = CONFTEST.format(module=lab.module, folder=lab.folder)
        wanted[folder / "tests" / "conftest.py"] = conftest
        wanted[folder / "pyproject.toml"] = PROJECT.format(name=lab.folder.replace("_", "-"))
    return update(wanted, arguments.check, "labs")


if __name__ == "__main__":
    raise SystemExit(main())
