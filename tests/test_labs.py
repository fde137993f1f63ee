"""The labs: student folders and their own tests; the functions and pages of labs 02 and 03."""

import contextlib
import doctest
import functools
import importlib.metadata
import importlib.util
import math
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ET
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from answers import LABS, ROOT, model, right_answers, skeleton, wrong_answers, wrong_file
from packaging.requirements import Requirement
from pages import run_blocks

import kerneltrick as kt
from kerneltrick.labs import _inputs, feature_maps, grader, kernel_trick


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


# One process imports NumPy and pytest and forks for each answer, since start-up takes longest.
# For a wrong answer, the first failing test is enough.
GRADER = """
import os, sys, numpy, pytest
for folder in sys.argv[1:]:
    if (child := os.fork()) == 0:
        os.chdir(folder)
        options = ["-x"] if os.path.exists("wrong") else ["-k", os.environ["ONLY"]]
        os._exit(pytest.main(["tests/", "-q", "--tb=no", "--junitxml=result.xml", *options]))
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, 1), (folder, status)
"""


def run_tests(lab, answers, folder, only=""):
    """Return the outcome of every test of a lab, or those with a name, for files {name: source}."""
    copies = {name: folder / str(number) for number, name in enumerate(answers)}
    ignored = shutil.ignore_patterns("__pycache__", ".pytest_cache")
    for name, copy in copies.items():
        shutil.copytree(ROOT / "labs" / lab.folder, copy, ignore=ignored)
        (copy / lab.file).write_text(answers[name], encoding="utf-8")
        if name.startswith("wrong"):
            (copy / "wrong").touch()
    environment = {
        **os.environ,
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "ONLY": only,
    }
    command = [sys.executable, "-c", GRADER, *map(str, copies.values())]
    run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
    return {name: outcomes(copy / "result.xml") for name, copy in copies.items()}


def outcomes(report):
    """{test: "passed", "failed" or "skipped"} from pytest's XML."""
    found = {}
    for case in ET.parse(report).getroot().iter("testcase"):
        marks = {child.tag for child in case} & {"failure", "error", "skipped"}
        outcome = "skipped" if "skipped" in marks else "failed" if marks else "passed"
        found[f"{case.get('classname')}::{case.get('name')}"] = outcome
    return found


pytestmark = pytest.mark.xdist_group("labs")  # the student folders are tested once


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """The reference, the skeleton and the right answers, tested: {name: outcomes}, by number."""

    @functools.cache
    def run(number):
        lab = LABS[number]
        answers = {"skeleton": skeleton(lab), **right_answers(lab)}
        return run_tests(lab, answers, tmp_path_factory.mktemp(lab.folder))

    return run


@pytest.mark.parametrize(
    "number", [x if x in ("01", "02") else pytest.param(x, marks=pytest.mark.slow) for x in LABS]
)
class TestStudentTests:
    def test_model_answer_passes_every_test(self, number, tested):
        found = tested(number)["model"]
        assert len(found) >= 2 * len(LABS[number].exercises)
        assert set(found.values()) == {"passed"}

    def test_bare_skeleton_fails_every_test(self, number, tested):
        assert tested(number)["skeleton"].keys() == tested(number)["model"].keys()
        assert set(tested(number)["skeleton"].values()) == {"failed"}

    def test_other_right_answers_pass(self, number, tested):
        found = {name: x for name, x in tested(number).items() if name.startswith("right")}
        assert len(found) >= 2
        for name, outcome in found.items():
            assert set(outcome.values()) == {"passed"}, name

    @pytest.mark.slow  # the grader's own tests see every wrong answer too
    def test_wrong_answers_fail(self, number, tmp_path):
        lab = LABS[number]
        answers = wrong_answers(lab).items()  # only the grader counts operations
        wrong = {f"wrong {x}": wrong_file(lab, w) for x, w in answers if "time grows" not in w.hint}
        found = run_tests(lab, wrong, tmp_path)
        assert len(found) >= 6
        assert [name for name, outcome in found.items() if "failed" not in outcome.values()] == []


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


@pytest.mark.parametrize("number", [x for x, names in GROWING.items() if names])
def test_what_the_first_call_does_once_counts_nowhere(number, tmp_path, server):
    lab = LABS[number]
    lines = [model(lab), LATE, *(f"{name} = late({name})" for name in GROWING[number])]
    source = "\n".join(lines)
    (found,) = run_tests(lab, {"late": source}, tmp_path, "n_by_n or memory or forms").values()
    assert set(found.values()) == {"passed"}, found
    assert len(found) >= len(GROWING[number])
    graded = replace(lab, exercises=tuple(e for e in lab.exercises if e.growth))
    assert grader.grade(graded, source.encode(), server=server).right


@pytest.mark.parametrize(
    "number", [pytest.param(x, marks=pytest.mark.slow) if x == "03" else x for x in LABS]
)
class TestStudentFolders:
    def test_student_file_needs_numpy_only(self, number):
        text = skeleton(LABS[number])
        modules = set(re.findall(r"^(?:from|import) (\w+)", text, re.M))
        assert modules <= {"__future__", "collections", "dataclasses", "math", "typing", "numpy"}
        assert "import kerneltrick" not in text

    def test_every_exercise_has_its_place_and_the_rest_is_given(self, number):
        text = skeleton(LABS[number])
        assert text.count("# YOUR CODE HERE") == len(LABS[number].exercises)
        for exercise in LABS[number].exercises:
            assert f'raise NotImplementedError("{exercise.name}")' in text

    def test_readme_code_prints_what_the_readme_says(self, number, monkeypatch):
        lab = LABS[number]
        monkeypatch.setitem(sys.modules, lab.module, lab.reference)
        readme = ROOT / "labs" / lab.folder / "README.md"
        assert run_blocks(readme) >= 2
        assert "kerneltrick lab check" in readme.read_text(encoding="utf-8")

    def test_examples_in_docstrings(self, number):
        failed, tried = doctest.testmod(LABS[number].reference)
        assert tried >= len(LABS[number].exercises)
        assert failed == 0


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
@pytest.mark.parametrize("number", ["01", "03"])
def test_uv_runs_the_tests_in_a_folder_that_was_started(number, uv, tmp_path):
    lab = LABS[number]
    grader.start(lab, tmp_path)
    # `uv run` alone would lock packages for all systems, and offline there are those of one.
    # --python, since UV_PYTHON would have it install into the environment of these tests.
    install = ("pip", "install", "--python", ".venv", "-r", "pyproject.toml")
    for step in (("venv",), install):
        made = uv(tmp_path, *step)
        assert made.returncode == 0, made.stderr
    run = ("run", "--no-sync", "pytest", "tests/", "-q")
    bare = uv(tmp_path, *run)
    assert bare.returncode == 1, bare.stderr
    assert "NotImplementedError" in bare.stdout
    right = model(lab)
    (tmp_path / lab.file).write_text(right, encoding="utf-8")
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


def test_seed_example_of_lab_02():
    standard_attention_order = kernel_trick.standard_attention_order
    linear_attention_order = kernel_trick.linear_attention_order
    Q, K, V = kernel_trick.random_tensors(seq_len=100, d_model=64)
    out1, attn_matrix = standard_attention_order(Q, K, V)
    assert attn_matrix.shape == (100, 100)
    out2 = linear_attention_order(Q, K, V, feature_map=kernel_trick.identity)
    np.testing.assert_allclose(out1, out2, rtol=1e-5)


def test_seed_example_of_lab_03(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "feature_maps", feature_maps)
    code = """
from feature_maps import *

Q = np.random.randn(100, 64).astype(np.float32)
K = np.random.randn(100, 64).astype(np.float32)
V = np.random.randn(100, 64).astype(np.float32)

for fm_name, fm in [('ELU+1', elu_plus_one),
                     ('ReLU', relu_feature_map),
                     ('Squared ReLU', squared_relu_feature_map)]:
    metrics = compare_to_softmax(Q, K, fm)
    print(f"{fm_name}: MSE={metrics['mse']:.4f}, corr={metrics['correlation']:.3f}")
"""
    exec(code, {})
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["ELU+1", "ReLU", "Squared ReLU"]
    assert all(0 <= float(re.search(r"MSE=([\d.]+)", line)[1]) <= 0.02 for line in lines)


@pytest.mark.parametrize("page", ["02_kernel_trick.md", "03_feature_maps.md"])
def test_docs_code_blocks_run(page):
    assert run_blocks(ROOT / "docs" / page) > 10


def test_examples_of_the_checks_of_inputs():
    failed, tried = doctest.testmod(_inputs)
    assert tried > 0
    assert failed == 0


class TestKernelTrick:
    @pytest.mark.parametrize("seed", range(10))
    @pytest.mark.parametrize(("n", "d"), [(1, 1), (2, 64), (100, 64), (257, 33), (600, 16)])
    def test_both_orders_agree_to_1e5_in_every_float32_entry(self, n, d, seed):
        Q, K, V = kernel_trick.random_tensors(n, d, seed)
        standard, weights = kernel_trick.standard_attention_order(Q, K, V)
        linear = kernel_trick.linear_attention_order(Q, K, V, kernel_trick.identity)
        assert standard.dtype == linear.dtype == weights.dtype == np.float32
        np.testing.assert_allclose(standard, linear, rtol=1e-5)

    @pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
    def test_float64_sums_in_the_dtype_of_the_inputs(self, dtype):
        Q, K, V = (x.astype(dtype) for x in kernel_trick.random_tensors(50, 8))
        exact = np.einsum("id,jd,jv->iv", *(x.astype(np.float64) for x in (Q, K, V)))
        standard, weights = kernel_trick.standard_attention_order(Q, K, V)
        linear = kernel_trick.linear_attention_order(Q, K, V, kernel_trick.identity)
        assert standard.dtype == weights.dtype == linear.dtype == dtype
        tiny = np.finfo(dtype).eps
        np.testing.assert_allclose(standard, exact, rtol=tiny, atol=1e-12)
        np.testing.assert_allclose(linear, exact, rtol=tiny, atol=1e-12)

    def test_normalised_order_against_its_definition(self):
        Q, K, V = (x.astype(np.float64) for x in kernel_trick.random_tensors(40, 8))
        phi = np.vectorize(lambda x: x + 1 if x > 0 else math.exp(x))
        A = phi(Q) @ phi(K).T
        expected = A @ V / A.sum(axis=1, keepdims=True)
        found = kernel_trick.linear_attention_order(
            Q, K, V, kernel_trick.elu_feature_map, normalize=True
        )
        np.testing.assert_allclose(found, expected, rtol=1e-12)

    def test_batches_and_heads(self):
        Q, K, V = np.random.default_rng(1).standard_normal((3, 2, 3, 20, 4))
        standard, weights = kernel_trick.standard_attention_order(Q, K, V)
        linear = kernel_trick.linear_attention_order(Q, K, V, kernel_trick.identity)
        assert weights.shape == (2, 3, 20, 20)
        np.testing.assert_allclose(standard, linear, rtol=1e-9, atol=1e-9)

    def test_associativity_is_a_plain_bool_and_can_fail(self):
        assert kernel_trick.verify_associativity(*kernel_trick.random_tensors(30, 8)) is True
        big, small = np.full((2, 2), 1e200), np.full((2, 2), 1e-300)
        assert kernel_trick.verify_associativity(big, big, small) is False
        nan = np.full((2, 2), np.nan)
        assert kernel_trick.verify_associativity(nan, nan, nan) is False
        zero = np.zeros((3, 2))
        assert kernel_trick.verify_associativity(zero, zero, zero) is True

    def test_operation_counts_of_the_lab(self):
        assert kernel_trick.standard_operation_count(4096, 64) == 4096**2 * 64 == 1_073_741_824
        assert kernel_trick.linear_operation_count(4096, 64) == 4096 * 64**2 == 16_777_216
        assert kernel_trick.operation_ratio(4096, 64) == 64

    def test_random_tensors_are_float32_and_follow_the_seed(self):
        first, again = (kernel_trick.random_tensors(5, 3, seed=1) for _ in range(2))
        assert all(x.shape == (5, 3) and x.dtype == np.float32 for x in first)
        assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
        assert not np.array_equal(first[0], kernel_trick.random_tensors(5, 3, seed=2)[0])

    @pytest.mark.parametrize("wrong", [np.ones((3, 2), int), [[1.0, 2.0]]])
    def test_what_is_not_a_floating_array_is_named(self, wrong):
        good = np.ones((3, 2))
        with pytest.raises(TypeError, match="K must be a NumPy array of floating-point numbers"):
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

    def test_random_features_against_their_formula(self):
        x, projection = np.random.default_rng(3).standard_normal((2, 10, 16))
        found = feature_maps.softmax_kernel_feature_map(x, projection)
        y = x / 2
        for i in range(10):
            expected = [math.exp(w @ y[i] - y[i] @ y[i] / 2) / math.sqrt(10) for w in projection]
            np.testing.assert_allclose(found[i], expected, rtol=1e-12)

    @pytest.mark.parametrize("shape", [(5,), (5, 3), (0, 4), (1, 5, 4)])
    def test_a_projection_of_the_wrong_shape_is_named(self, shape):
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
