"""Write the notebooks of labs 02 and 03 from their READMEs and student files.

    python tools/make_notebooks.py           write labs/notebooks/*.ipynb
    python tools/make_notebooks.py --check   exit 1 if one of them is not up to date

Explanations come from the README, a section a cell, and the functions to fill in from the student
file, a function a cell. What stands here is the little check after each function. In a bare
notebook every check says what is not written yet, and all cells run.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
from pathlib import Path
from typing import Any

from generated import ROOT, update

from kerneltrick.labs import grader

Cell = dict[str, Any]

CHECKS = {
    "02": {
        "simple_feature_map": """\
x = np.array([[-1.0, 2.0]])
assert np.array_equal(simple_feature_map(x), x), "φ(x) = x changes nothing"
""",
        "elu_feature_map": """\
x = np.array([[2.0, 0.0, -1.0]])
assert np.allclose(elu_feature_map(x), [[3, 1, np.exp(-1)]]), "x + 1 above 0, eˣ below"
far = np.array([[-20.0]], dtype=np.float32)
assert elu_feature_map(far) > 0, "(eˣ − 1) + 1 is 0 here: write the branch below 0 as eˣ"
""",
        "standard_attention_order": """\
Q, K, V = np.eye(2), np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0], [10.0]])
output, weights = standard_attention_order(Q, K, V)
assert np.allclose(weights, [[1, 3], [2, 4]]), "the weights are QKᵀ, without softmax or scale"
assert np.allclose(output, [[31], [42]]), "the output is QKᵀ times V"
""",
        "linear_attention_order": """\
Q, K, V = (x.astype(np.float64) for x in random_tensors(seq_len=30, d_model=4))
found = linear_attention_order(Q, K, V, identity)
assert found.shape == (30, 4), f"one row for each query, not {found.shape}"
assert np.allclose(found, Q @ K.T @ V), "with φ(x) = x it is (QKᵀ)V"
found = linear_attention_order(Q, K, V, np.exp)
assert np.allclose(found, np.exp(Q) @ np.exp(K).T @ V), "φ goes on Q and on K, not on V"
found = linear_attention_order(Q, K, np.ones((30, 4)), np.exp, normalize=True)
assert np.allclose(found, 1), "the average of values that are all 1 is 1"
""",
        "verify_associativity": """\
Q, K, V = np.random.default_rng(0).standard_normal((3, 100, 64))
assert verify_associativity(Q, K, V), "rounding differs between the orders: allow for it"
big, small = np.full((2, 2), 1e200), np.full((2, 2), 1e-300)
with np.errstate(all="ignore"):
    assert not verify_associativity(big, big, small), "QKᵀ is inf here, KᵀV is not"
""",
    },
    "03": {
        "elu_plus_one": """\
x = np.array([[2.0, 0.0, -1.0]])
assert np.allclose(elu_plus_one(x), [[3, 1, np.exp(-1)]]), "x + 1 above 0, eˣ below"
far = np.array([[-20.0]], dtype=np.float32)
assert elu_plus_one(far) > 0, "(eˣ − 1) + 1 is 0 here: write the branch below 0 as eˣ"
""",
        "relu_feature_map": """\
x = np.array([[-2.0, 3.0]])
assert np.allclose(relu_feature_map(x), [[0, 3]]), "max(0, x)"
assert x[0, 0] == -2, "the caller's array was changed"
""",
        "squared_relu_feature_map": """\
x = np.array([[-2.0, 3.0]])
assert np.allclose(squared_relu_feature_map(x), [[0, 9]]), "0 where x < 0, x² where x > 0"
assert x[0, 0] == -2, "the caller's array was changed"
""",
        "exp_feature_map": """\
x = np.array([[0.0, 1.0]])
assert np.allclose(exp_feature_map(x), [[1, np.e]]), "eˣ, each coordinate alone"
""",
        "softmax_kernel_feature_map": """\
zero = softmax_kernel_feature_map(np.zeros((1, 2)), np.ones((4, 2)))
assert np.allclose(zero, 0.5), "at x = 0 every feature is 1/√m"
x = np.array([[2.0, 0.0, 0.0, 2.0]])
w = np.array([[1.0, 0.5, 0.0, -1.0]])
scaled = x[0] / 4**0.25
expected = np.exp(w[0] @ scaled - scaled @ scaled / 2)
assert np.allclose(softmax_kernel_feature_map(x, w), expected), "x′ = x·d^(−1/4) in both terms"
""",
        "compute_implicit_attention": """\
Q, K = np.random.default_rng(0).standard_normal((2, 20, 4))
A = compute_implicit_attention(Q, K, np.exp)
assert A.shape == (20, 20), f"a row for each query, a column for each key, not {A.shape}"
assert np.allclose(A.sum(axis=1), 1), "every row adds up to 1"
assert np.allclose(A[0] * (np.exp(Q[0]) @ np.exp(K).sum(axis=0)), np.exp(Q[0]) @ np.exp(K).T)
try:
    compute_implicit_attention(np.ones((1, 2)), np.ones((3, 2)), np.zeros_like)
except ZeroDivisionError:
    pass
else:
    raise AssertionError("a row that adds up to 0 must raise ZeroDivisionError")
""",
        "show_attention": """\
show_attention(np.eye(4))
show_attention(np.array([[1.5, -0.5, 0.0], [0.2, 0.3, 0.5]]))
""",
        "compare_to_softmax": """\
Q, K = np.random.default_rng(0).standard_normal((2, 20, 4))
found = compare_to_softmax(Q, K, np.exp)
assert set(found) == {"mse", "max_diff", "correlation"}, f"these keys came: {sorted(found)}"
assert 0 < found["mse"] <= 2 / 20, "rows that add up to 1 cannot differ by more"
assert found["mse"] <= found["max_diff"] ** 2, "a mean cannot exceed the largest"
other = compare_to_softmax(Q, K, np.exp, scale=1)
assert other["mse"] != found["mse"], "scale changes the softmax"
""",
        "analyze_feature_map_quality": """\
Q, K, V = np.random.default_rng(0).standard_normal((3, 20, 4))
found = analyze_feature_map_quality(np.exp, Q, K, V)
assert len(found) == 8, f"eight numbers are asked for, these came: {sorted(found)}"
assert np.isclose(found["condition_number"], 1), "positive features cannot cancel"
assert found["negative_fraction"] == 0, "positive features give no negative weights"
assert found["mse"] == compare_to_softmax(Q, K, np.exp)["mse"]
assert analyze_feature_map_quality(lambda x: x, Q, K, V)["negative_fraction"] > 0
""",
    },
}
RUN = {"02": ("The insight",), "03": ("Expected behaviour",)}  # sections whose code becomes cells
LEFT_OUT = ("What to do",)
EARLY = "Hints"  # stands at the end of a README, and before the functions of a notebook
LATE = "Expected behaviour"  # this section and what follows it need the functions

HOW = """\
## How to work here

1. Run the cells from top to bottom (Shift + Enter), beginning with the next one.
2. Fill in the functions marked `# YOUR CODE HERE`, and run their cells again. Their docstrings say
   what is expected.
3. The cell after each function tries it: it says that the function is not written yet, that it
   looks right, or shows an `AssertionError` with the line that does not hold.
4. The last cell runs all tests of the lab.

The text of the lab and its tests are in [`{folder}`](../{folder}/README.md)."""

SETUP = """\
import contextlib


@contextlib.contextmanager
def when_written(name=""):
    \"\"\"Run the lines below; a function that is not written yet is named, and is no error.\"\"\"
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
    \"\"\"The tests of the lab, on the functions of this notebook.\"\"\"
    try:
        import pytest
    except ImportError:
        return "The tests need pytest: %pip install pytest, then run this cell again."
    if not (FOLDER / "tests").is_dir():
        return f"There are no tests at {{FOLDER.resolve()}}: set FOLDER to the folder of the lab."
    for name in ("conftest", "test_{module}"):  # of an earlier run
        sys.modules.pop(name, None)
    lab = sys.modules["{module}"] = types.ModuleType("{module}")
    for name, value in globals().items():
        if not name.startswith("_"):
            setattr(lab, name, value)
    options = ["-q", "--tb=line", "-p", "no:cacheprovider"]
    if pytest.main([str(FOLDER / "tests"), *options]) == 0:
        return "Lab {number}: all tests pass. Done."
    return "Lab {number}: not done yet. Each line above names a test that failed, and why."


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
        return section_cells(name, sections[title], title in RUN[lab.number])

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
    parser = argparse.ArgumentParser(description="Write the notebooks of labs 02 and 03.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if stale")
    parser.add_argument("--to", type=Path, default=ROOT / "labs/notebooks", help="their folder")
    arguments = parser.parse_args(argv)
    made = [grader.labs()[number] for number in CHECKS]
    wanted = {arguments.to / f"{lab.folder}.ipynb": notebook(lab) for lab in made}
    return update(wanted, arguments.check, "notebooks")


if __name__ == "__main__":
    raise SystemExit(main())
