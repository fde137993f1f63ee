"""The labs: student folders and their own tests; the functions and pages of labs 02 and 03."""

import contextlib
import doctest
import functools
import importlib.metadata
import importlib.util
import inspect
import itertools
import math
import os
import re
import subprocess
import sys
import types
import warnings
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from answers import LABS, ROOT, model, right_answers, skeleton, wrong_answers, wrong_file
from grading import HERE
from packaging.requirements import Requirement
from pages import run_blocks

import kerneltrick as kt
from kerneltrick.labs import feature_maps, grader, kernel_trick


def load_tool(name):
    tools = str(ROOT / "tools")
    with contextlib.ExitStack() as stack:
        if tools not in sys.path:
            sys.path.insert(0, tools)
            stack.callback(sys.path.remove, tools)
        spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return module


make_labs = load_tool("make_labs")


@functools.cache
def student_tests(number):
    lab = LABS[number]
    path = ROOT / "labs" / lab.folder / "tests" / f"test_{lab.module}.py"
    return compile(path.read_text(encoding="utf-8"), str(path), "exec")


def calls(test):
    """The arguments of each run of a test."""
    marks = [mark for mark in getattr(test, "pytestmark", ()) if mark.name == "parametrize"]
    for rows in itertools.product(*(mark.args[1] for mark in marks)):
        options = {}
        for mark, row in zip(marks, rows, strict=True):
            several = not isinstance(mark.args[0], str)
            options |= zip(mark.args[0], row, strict=True) if several else {mark.args[0]: row}
        yield options


def outcomes(number, source, only=""):
    """Whether each test of a lab, or those with a name, passes with a source: names, True or False.

    This is what pytest does, in one process and without looking for tests.
    """
    module = types.ModuleType(LABS[number].module)
    space = {"__name__": "student_tests"}
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        patch.setitem(sys.modules, module.__name__, module)
        exec(compile(source, LABS[number].file, "exec"), module.__dict__)
        exec(student_tests(number), space)
        for group in (x for name, x in space.items() if name.startswith("Test")):
            for name, test in vars(group).items():
                if name.startswith("test_") and re.search(only, name):
                    for options in calls(test):
                        if "monkeypatch" in inspect.signature(test).parameters:
                            options["monkeypatch"] = patch
                        try:
                            test(group(), **options)
                        except (Exception, pytest.fail.Exception):
                            yield name, False
                        else:
                            yield name, True


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Answers may draw pictures."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("number", LABS)
@pytest.mark.usefixtures("elsewhere")
class TestStudentTests:
    def test_right_answers_pass_and_the_bare_skeleton_fails_every_test(self, number):
        answers = right_answers(LABS[number])
        assert len(answers) >= 3
        for name, source in answers.items():
            found = list(outcomes(number, source))
            assert len(found) >= 2 * len(LABS[number].exercises)
            assert [test for test, right in found if not right] == [], name
        bare = list(outcomes(number, skeleton(LABS[number])))
        assert bare == [(test, False) for test, _ in found]

    @pytest.mark.slow  # the grader's own tests see every wrong answer too
    def test_wrong_answers_fail(self, number):
        wrong = wrong_answers(LABS[number]).items()  # only the grader counts operations
        found = {x: wrong_file(LABS[number], w) for x, w in wrong if "time grows" not in w.hint}
        assert len(found) >= 6
        passing = [x for x, source in found.items() if all(y for _, y in outcomes(number, source))]
        assert passing == []


# What a function does once, such as an import, is large here, and is not what a call needs.
LATE = """
def late(function):
    imported = []
    def call(*arguments, **options):
        if not imported:
            imported.append(bytes(2**27))
        return function(*arguments, **options)
    return call
"""
GROWING = {x: [e.name for e in lab.exercises if e.growth] for x, lab in LABS.items()}


@pytest.mark.usefixtures("elsewhere")
def test_what_the_first_call_does_once_counts_nowhere(server):
    for number, names in GROWING.items():
        lab = LABS[number]
        source = "\n".join([model(lab), LATE, *(f"{name} = late({name})" for name in names)])
        found = [right for _, right in outcomes(number, source, "n_by_n|memory|forms")]
        assert all(found), number
        assert len(found) >= len(names), number
        graded = replace(lab, exercises=tuple(e for e in lab.exercises if e.growth))
        by = server if number == "02" else HERE
        assert grader.grade(graded, source.encode(), server=by).right, number


@pytest.mark.parametrize(
    "number", [pytest.param(x, marks=pytest.mark.slow) if x == "03" else x for x in LABS]
)
class TestStudentFolders:
    def test_student_file_needs_numpy_only_and_has_a_place_for_each_exercise(self, number):
        text = skeleton(LABS[number])
        modules = set(re.findall(r"^(?:from|import) (\w+)", text, re.M))
        assert modules <= {"__future__", "collections", "dataclasses", "math", "typing", "numpy"}
        assert "import kerneltrick" not in text
        assert text.count("# YOUR CODE HERE") == len(LABS[number].exercises)
        for exercise in LABS[number].exercises:
            assert f'raise NotImplementedError("{exercise.name}")' in text

    def test_readme_code_prints_what_the_readme_says(self, number, monkeypatch):
        lab = LABS[number]
        monkeypatch.setitem(sys.modules, lab.module, lab.reference)
        readme = ROOT / "labs" / lab.folder / "README.md"
        assert run_blocks(readme) >= 2
        assert "kerneltrick lab check" in readme.read_text(encoding="utf-8")

    def test_every_function_has_an_example(self, number):
        finder = doctest.DocTestFinder(recurse=True)
        found = [test for test in finder.find(LABS[number].reference) if test.examples]
        assert len(found) >= len(LABS[number].exercises)

    def test_the_tests_find_the_file_and_the_notebook(self, number):
        """All labs have the same conftest.py but for names; see `TestStart` in test_lab_cli.py."""
        texts = []
        for lab in (LABS["02"], LABS[number]):
            path = ROOT / "labs" / lab.folder / "tests" / "conftest.py"
            text = path.read_text(encoding="utf-8").replace(f"{lab.folder}.ipynb", "NOTEBOOK")
            texts.append(text.replace(f"{lab.module}.py", "FILE"))
        assert texts[0] == texts[1]
        assert "FILE" in texts[0]
        assert "NOTEBOOK" in texts[0]


def pack_wheel(name, folder):
    """The installed distribution, and those it needs, as wheels that uv can install offline."""
    found = importlib.metadata.distribution(name)
    tag = re.search(r"^Tag: (\S+)", found.read_text("WHEEL"), re.M)[1]
    label = re.sub(r"[-_.]+", "_", found.metadata["Name"])
    with zipfile.ZipFile(folder / f"{label}-{found.version}-{tag}.whl", "w") as wheel:
        for path in found.files:
            if ".." not in path.parts and "__pycache__" not in path.parts:
                wheel.write(path.locate(), str(path))
    for line in found.requires or ():
        needed = Requirement(line)
        if needed.marker is None or needed.marker.evaluate({"extra": ""}):
            pack_wheel(needed.name, folder)


@pytest.fixture(scope="module")
def uv(tmp_path_factory):
    """uv without a network, and with nothing but NumPy and pytest, as they are installed here."""
    uv = pytest.importorskip("uv", reason="uv is not installed")
    home = tmp_path_factory.mktemp("uv")
    (home / "wheels").mkdir()
    for name in ("numpy", "pytest"):
        pack_wheel(name, home / "wheels")
    kept = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
    environment = {
        **kept,
        "UV_OFFLINE": "1",
        "UV_NO_INDEX": "1",
        "UV_NO_CONFIG": "1",
        "UV_FIND_LINKS": str(home / "wheels"),
        "UV_CACHE_DIR": str(home / "cache"),
        "UV_PYTHON": sys.executable,
        "UV_PYTHON_DOWNLOADS": "never",
    }

    def run(folder, *arguments):
        command = [uv.find_uv_bin(), *arguments]
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)

    return run


@pytest.mark.slow  # uv makes an environment of its own
def test_uv_runs_the_tests_in_a_folder_that_was_started(uv, tmp_path):
    lab = LABS["03"]
    grader.start(lab, tmp_path)
    # `uv run` alone would lock packages for all systems, and offline there are those of one.
    # --python, since UV_PYTHON would have it install into the environment of these tests.
    install = ("pip", "install", "--python", ".venv", "-r", "pyproject.toml")
    for made in (uv(tmp_path, "venv"), uv(tmp_path, *install)):
        assert made.returncode == 0, made.stderr
    run = ("run", "--no-sync", "pytest", "tests/", "-q")
    bare = uv(tmp_path, *run)
    assert bare.returncode == 1, bare.stderr
    assert "NotImplementedError" in bare.stdout
    (tmp_path / lab.file).write_text(model(lab), encoding="utf-8")
    done = uv(tmp_path, *run)
    assert done.returncode == 0, done.stdout + done.stderr
    where = uv(tmp_path, "run", "--no-sync", "python", "-c", "import numpy; print(numpy.__file__)")
    assert Path(where.stdout.strip()).is_relative_to(tmp_path / ".venv")  # it works without ours
    names = [s.name for s in grader.find_submissions(tmp_path, LABS).submissions]
    assert names == [lab.file]


def test_every_lab_says_what_uv_needs():
    for lab in LABS.values():
        text = (ROOT / "labs" / lab.folder / "pyproject.toml").read_text(encoding="utf-8")
        assert 'dependencies = ["numpy>=2.0", "pytest>=8.3"]' in text
        readme = (ROOT / "labs" / lab.folder / "README.md").read_text(encoding="utf-8")
        assert "uv run pytest tests/" in readme


def test_student_files_are_up_to_date():
    assert make_labs.main(["--check"]) == 0


def test_check_notices_a_stale_student_file(tmp_path, capsys):
    assert make_labs.main(["--check", "--to", str(tmp_path)]) == 1
    assert not list(tmp_path.iterdir())
    assert make_labs.main(["--to", str(tmp_path)]) == 0
    assert make_labs.main(["--check", "--to", str(tmp_path)]) == 0
    changed = tmp_path / "lab02_kernel_trick/src/kernel_trick.py"
    changed.write_text(changed.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    assert make_labs.main(["--check", "--to", str(tmp_path)]) == 1
    assert "kernel_trick.py" in capsys.readouterr().err


def test_generator_refuses_an_unknown_exercise():
    with pytest.raises(ValueError, match="no function 'missing'"):
        make_labs.skeleton("def present():\n    '''Doc.'''\n", ("missing",))


@pytest.mark.slow
def test_star_table_is_up_to_date():
    assert load_tool("make_stars").main(["--check"]) == 0


def test_star_table_has_the_measured_rows(monkeypatch):
    make_stars = load_tool("make_stars")
    quick = ("ELU+1", "ReLU")
    monkeypatch.setattr(make_stars, "MAPS", {name: make_stars.MAPS[name] for name in quick})
    measured = make_stars.tables(*make_stars.measure()).splitlines()
    for page in make_stars.PAGES:
        lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
        assert [line for line in measured if line not in lines] == []


@pytest.mark.parametrize("page", ["02_kernel_trick.md", "03_feature_maps.md"])
def test_docs_code_blocks_run(page):
    assert run_blocks(ROOT / "docs" / page) > 10


class TestKernelTrick:
    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_float64_sums_in_the_dtype_of_the_inputs(self, dtype):
        for seed, (n, d) in enumerate([(1, 1), (2, 64), (100, 64), (257, 33), (300, 16)]):
            Q, K, V = (x.astype(dtype) for x in kernel_trick.random_tensors(n, d, seed))
            exact = np.einsum("id,jd,jv->iv", *map(np.float64, (Q, K, V)), optimize=True)
            standard, weights = kernel_trick.standard_attention_order(Q, K, V)
            linear = kernel_trick.linear_attention_order(Q, K, V, kernel_trick.identity)
            assert standard.dtype == weights.dtype == linear.dtype == dtype
            tiny, least = np.finfo(dtype).eps, 1e-12 + np.finfo(dtype).smallest_subnormal
            np.testing.assert_allclose(standard, exact, rtol=tiny, atol=least)
            np.testing.assert_allclose(linear, exact, rtol=tiny, atol=least)

    def test_batches_and_heads(self):
        Q, K, V = np.random.default_rng(1).standard_normal((3, 2, 3, 20, 4))
        standard, weights = kernel_trick.standard_attention_order(Q, K, V)
        linear = kernel_trick.linear_attention_order(Q, K, V, kernel_trick.identity)
        assert weights.shape == (2, 3, 20, 20)
        np.testing.assert_allclose(standard, linear, rtol=1e-9, atol=1e-9)

    def test_random_tensors_are_float32_and_follow_the_seed(self):
        first, again = (kernel_trick.random_tensors(5, 3, seed=1) for _ in range(2))
        assert all(x.shape == (5, 3) and x.dtype == np.float32 for x in first)
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert not np.array_equal(first[0], kernel_trick.random_tensors(5, 3, seed=2)[0])

    def test_what_is_not_a_floating_array_is_named(self):
        good, said = np.ones((3, 2)), "must be a NumPy array of floating-point numbers"
        for wrong in (np.ones((3, 2), int), [[1.0, 2.0]]):
            with pytest.raises(TypeError, match=f"K {said}"):
                kernel_trick.standard_attention_order(good, wrong, good)
            with pytest.raises(TypeError, match="Q must be"):
                kernel_trick.linear_attention_order(wrong, good, good, kernel_trick.identity)


class TestFeatureMaps:
    @pytest.mark.parametrize("dtype", [np.float32, np.float64])
    def test_elementwise_maps_against_scalar_formulas(self, dtype):
        x = np.array([[-80.0, -20.0, -1.5, 0.0, 0.3, 4.0]], dtype=dtype)
        formulas = {
            feature_maps.elu_plus_one: lambda v: v + 1 if v > 0 else math.exp(v),
            feature_maps.relu_feature_map: lambda v: max(v, 0.0),
            feature_maps.squared_relu_feature_map: lambda v: max(v, 0.0) ** 2,
            feature_maps.exp_feature_map: math.exp,
        }
        for function, formula in formulas.items():
            found = function(x)
            assert found.dtype == dtype
            expected = [[formula(float(v)) for v in x[0]]]
            np.testing.assert_allclose(found, expected, rtol=4 * np.finfo(dtype).eps)

    def test_random_features_are_those_of_favor(self):
        x = np.random.default_rng(3).standard_normal((10, 16))
        favor = kt.maps.Favor(features=32, seed=4)
        found = feature_maps.softmax_kernel_feature_map(x, favor.projection(16))
        np.testing.assert_allclose(found, favor.phi(x / 2), rtol=1e-12)

    def test_a_projection_of_the_wrong_shape_is_named(self):
        for shape in ((5,), (5, 3), (0, 4), (1, 5, 4)):
            with pytest.raises(ValueError, match="projection_matrix must be"):
                feature_maps.softmax_kernel_feature_map(np.ones((2, 4)), np.ones(shape))

    def test_random_projection_does_not_repeat_data_of_the_same_seed(self):
        projection = feature_maps.random_projection(50, 8, seed=0)
        data = np.random.default_rng(0).standard_normal((50, 8))
        assert abs(np.corrcoef(projection.ravel(), data.ravel())[0, 1]) < 0.2

    def test_implicit_attention_reproduces_linear_attention(self):
        Q, K, V = np.random.default_rng(5).standard_normal((3, 30, 8))
        A = feature_maps.compute_implicit_attention(Q, K, feature_maps.exp_feature_map)
        np.testing.assert_allclose(A @ V, kt.linear_attention(Q, K, V, "exp"), rtol=1e-9)

    def test_a_map_that_is_softmax_up_to_rounding_compares_as_equal(self):
        Q, K = 0.3 * np.random.default_rng(6).standard_normal((2, 20, 3))
        taylor = kt.maps.get("taylor:order=8")
        found = feature_maps.compare_to_softmax(Q, K, lambda x: taylor.phi(x * 3**-0.25))
        assert found["mse"] < 1e-20
        assert found["max_diff"] < 1e-10
        assert found["correlation"] == pytest.approx(1)

    def test_quality_contains_the_comparison(self):
        Q, K, V = np.random.default_rng(7).standard_normal((3, 30, 8))
        comparison = feature_maps.compare_to_softmax(Q, K, feature_maps.elu_plus_one)
        quality = feature_maps.analyze_feature_map_quality(feature_maps.elu_plus_one, Q, K, V)
        assert comparison.items() <= quality.items()
        assert all(type(value) is float for value in quality.values())

    def test_a_query_without_weight_is_reported_by_its_index(self):
        Q, K = np.array([[1.0, 1.0], [1.0, -1.0]]), np.array([[-1.0, 1.0], [-2.0, 3.0]])
        relu = feature_maps.relu_feature_map
        for call in (
            lambda: feature_maps.compute_implicit_attention(Q, K, relu),
            lambda: feature_maps.compare_to_softmax(Q, K, relu),
            lambda: feature_maps.analyze_feature_map_quality(relu, Q, K, np.eye(2)),
        ):
            with pytest.raises(ZeroDivisionError, match=r"\(1,\)"):
                call()

    def test_mse_of_weights_cannot_exceed_two_over_n(self):
        Q, K = np.random.default_rng(8).standard_normal((2, 100, 64)).astype(np.float32)
        for feature_map in (feature_maps.elu_plus_one, feature_maps.relu_feature_map):
            for scale in (None, 1.0, 100.0):
                assert feature_maps.compare_to_softmax(Q, K, feature_map, scale)["mse"] <= 0.02
