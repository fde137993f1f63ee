"""The notebooks of the labs: up to date, valid, and run in Jupyter, answered and bare."""

import ast
import contextlib
import importlib
import io
import json
import re
import shutil
from pathlib import Path

import pytest
from answers import model

ROOT = Path(__file__).resolve().parent.parent
with pytest.MonkeyPatch.context() as patch:
    patch.syspath_prepend(ROOT / "tools")
    make_notebooks = importlib.import_module("make_notebooks")
labs = make_notebooks.grader.labs()
NUMBERS = tuple(make_notebooks.CHECKS)


def notebook_path(number):
    return ROOT / "labs/notebooks" / f"{labs[number].folder}.ipynb"


def exercises(number):
    return [exercise.name for exercise in labs[number].exercises]


def read(number):
    nbformat = pytest.importorskip("nbformat")
    return nbformat.read(notebook_path(number), as_version=4)


def right_answers(number):
    """Return the source of a right solution's imports, helpers and exercises, by name."""
    source = model(labs[number])
    found, rest = {}, []
    for node in ast.parse(source).body:
        text = ast.get_source_segment(source, node)
        if isinstance(node, ast.FunctionDef):
            found[node.name] = text
        elif not text.startswith(("from __future__", '"""')):
            rest.append(text)
    return {"imports and constants": "\n".join(rest), **found}


def filled_in(number, answers):
    """The notebook with answers in place of the functions; helpers go to what is given."""
    book = read(number)
    names = {cell.id: cell for cell in book.cells}
    for name, text in answers.items():
        own = f"lab{number}-{make_notebooks.slug(name)}"
        if name in exercises(number):
            names[own].source = text
        else:
            names[f"lab{number}-given"].source += f"\n\n\n{text}"
    return book


def execute(book, folder, number):
    """Return what each cell prints, by id. The lab's folder is next to the notebook's."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    lab = labs[number].folder
    ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    shutil.copytree(ROOT / "labs" / lab, folder / lab, ignore=ignored)
    (folder / "notebooks").mkdir()
    client = nbclient.NotebookClient(
        book,
        timeout=300,
        startup_timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": str(folder / "notebooks")}},
    )
    client.execute()
    found = {}
    for cell in book.cells:
        outputs = [output for output in cell.get("outputs", []) if output.get("name") == "stdout"]
        found[cell.id] = "".join(output.text for output in outputs)
    return found


def check_of(number, name):
    return f"lab{number}-{make_notebooks.slug(name)}-check"


def last_cell(number):
    """The cell that runs the tests of the lab."""
    return next(cell.source for cell in read(number).cells if cell.id == f"lab{number}-tests")


LONG = {"lab07-the-experiment-1"}  # cells that take long, which only Jupyter runs


def run_cells(book, skipped):
    """What each code cell prints, by id, without Jupyter."""
    names, found = {"__name__": "notebook"}, {}
    for cell in book.cells:
        if cell.cell_type == "code" and cell.id not in skipped:
            with contextlib.redirect_stdout(io.StringIO()) as printed:
                exec(compile(cell.source, cell.id, "exec"), names)
            found[cell.id] = printed.getvalue()
    return found


def compare_with_promises(book, printed):
    """Cells print what the text after them says they should."""
    compared = 0
    for cell, after in zip(book.cells, book.cells[1:], strict=False):
        promised = re.match(r"It should print:\n\n```text\n(.*?)```", after.source, re.S)
        if promised and cell.id in printed:
            assert printed[cell.id] == promised[1]
            compared += 1
    assert compared


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.filterwarnings("ignore")  # a notebook shows warnings and goes on
class TestCells:
    """The short form of TestRun, for every lab."""

    def test_right_answers_pass_every_check(self, number):
        book = filled_in(number, right_answers(number))
        printed = run_cells(book, LONG | {f"lab{number}-tests"})
        for name in exercises(number):
            assert printed[check_of(number, name)].endswith(f"{name}: looks right.\n")
        assert "not written yet" not in "".join(printed.values())
        compare_with_promises(book, printed)

    def test_a_bare_notebook_says_what_is_missing(self, number):
        printed = run_cells(read(number), {f"lab{number}-tests"})
        for name in exercises(number):
            assert printed[check_of(number, name)] == f"{name}: not written yet.\n"


class TestRun:
    """In Jupyter, one lab for all: `TestCells` runs the cells of each."""

    @pytest.mark.parametrize("number", ["02", pytest.param("07", marks=pytest.mark.slow)])
    def test_right_answers_pass_every_cell(self, number, tmp_path):
        book = filled_in(number, right_answers(number))
        printed = execute(book, tmp_path, number)
        for name in exercises(number):
            assert printed[check_of(number, name)].endswith(f"{name}: looks right.\n")
        assert f"Lab {number}: all tests pass. Done." in printed[f"lab{number}-tests"]
        assert "not written yet" not in "".join(printed.values())
        compare_with_promises(book, printed)

    def test_bare_notebook_runs_through_and_says_what_is_missing(self, tmp_path):
        """The functions are then written and the last cell runs again; also away from its lab."""
        nbformat = pytest.importorskip("nbformat")
        book = read("02")
        tests = last_cell("02")
        later = {f"again-{name}": text for name, text in right_answers("02").items()}
        later["again"] = tests
        later["far"] = tests.replace(f"../{labs['02'].folder}", "elsewhere")
        for name, text in later.items():
            book.cells.append(nbformat.v4.new_code_cell(text, id=make_notebooks.slug(name)))
        printed = execute(book, tmp_path, "02")
        for name in exercises("02"):
            assert printed[check_of("02", name)] == f"{name}: not written yet.\n"
        last = printed["lab02-tests"]
        assert "Lab 02: not done yet." in last
        assert all(f"NotImplementedError: {name}" in last for name in exercises("02"))
        assert "Lab 02: all tests pass. Done." in printed["again"]
        assert "set FOLDER to the folder of the lab" in printed["far"]


@pytest.mark.parametrize("number", NUMBERS)
class TestNotebooks:
    def test_valid_with_stable_ids_and_no_outputs(self, number):
        nbformat = pytest.importorskip("nbformat")
        nbformat.validate(json.loads(notebook_path(number).read_text(encoding="utf-8")))
        book = read(number)
        assert (book.nbformat, book.nbformat_minor) == (4, 5)
        ids = [cell.id for cell in book.cells]
        assert len(set(ids)) == len(ids)
        assert all(name.startswith(f"lab{number}-") for name in ids)
        code = [cell for cell in book.cells if cell.cell_type == "code"]
        assert all(cell.outputs == [] and cell.execution_count is None for cell in code)

    def test_has_every_exercise_once_and_needs_numpy_only(self, number):
        book = read(number)
        source = "\n".join(cell.source for cell in book.cells if cell.cell_type == "code")
        assert source.count("# YOUR CODE HERE") == len(exercises(number))
        modules = set()
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Import):
                modules |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                modules.add(node.module.split(".")[0])
        standard = {"collections", "contextlib", "math", "pathlib", "sys", "types", "typing"}
        assert {"numpy", "pytest"} <= modules
        assert modules <= standard | {"numpy", "pytest", "matplotlib"}

    def test_runs_the_tests_of_its_own_lab(self, number):
        texts = []
        for lab in (labs["02"], labs[number]):
            text = last_cell(lab.number).replace(lab.folder, "FOLDER").replace(lab.module, "MODULE")
            texts.append(text.replace(f"Lab {lab.number}", "LAB"))
        assert texts[0] == texts[1]
        assert all(name in texts[0] for name in ("../FOLDER", "test_MODULE", "LAB"))

    def test_says_what_the_readme_says(self, number):
        book = read(number)
        text = "\n".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
        readme = (ROOT / "labs" / labs[number].folder / "README.md").read_text(encoding="utf-8")
        for title in re.findall(r"^## (.+)$", readme, re.M):
            assert (f"## {title}\n" in text) == (title not in make_notebooks.LEFT_OUT)

    def test_links_lead_somewhere(self, number):
        text = "\n".join(cell.source for cell in read(number).cells if cell.cell_type == "markdown")
        links = re.findall(r"\]\(([^)#]+)\)", text)
        assert links
        assert all((notebook_path(number).parent / link).exists() for link in links)


@pytest.mark.filterwarnings("ignore")
def test_a_wrong_answer_stops_at_its_check_and_says_why():
    for number, name, wrong, said in (
        ("02", "elu_feature_map", "np.where(x > 0, x, np.exp(x) - 1) + 1", "branch below 0 as eˣ"),
        ("03", "relu_feature_map", "np.abs(x)", "max(0, x)"),
    ):
        answers = right_answers(number) | {name: f"def {name}(x):\n    return {wrong}"}
        with pytest.raises(AssertionError) as error:
            run_cells(filled_in(number, answers), LONG | {f"lab{number}-tests"})
        assert said in str(error.value)
        cells = [str(entry.path) for entry in error.traceback]
        assert any(cell.endswith(check_of(number, name)) for cell in cells)


def test_notebooks_are_up_to_date():
    assert make_notebooks.main(["--check"]) == 0


def test_check_notices_a_stale_notebook(tmp_path, capsys):
    assert make_notebooks.main(["--check", "--to", str(tmp_path)]) == 1
    assert not list(tmp_path.iterdir())
    assert make_notebooks.main(["--to", str(tmp_path)]) == 0
    assert make_notebooks.main(["--check", "--to", str(tmp_path)]) == 0
    changed = tmp_path / "lab02_kernel_trick.ipynb"
    changed.write_text(changed.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert make_notebooks.main(["--check", "--to", str(tmp_path)]) == 1
    assert "lab02_kernel_trick.ipynb" in capsys.readouterr().err


def test_generator_refuses_an_unknown_exercise():
    with pytest.raises(ValueError, match="no function 'missing'"):
        make_notebooks.split_student_file("def present():\n    pass\n", ["missing"])
