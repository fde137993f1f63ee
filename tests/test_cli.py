"""The command line: what it prints, what it writes, how it fails."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import safetensors.numpy
import typer.main

import kerneltrick as kt
from kerneltrick import analysis
from kerneltrick.cli import _app as app_module
from kerneltrick.cli import main
from kerneltrick.cli._arguments import default_maps, split_maps

SMALL = ("--synthetic", "gaussian:n=48,d=8,heads=2")


@pytest.fixture(autouse=True)
def _short_timing(monkeypatch):
    monkeypatch.setattr(app_module, "SECONDS", 0.0)


@pytest.fixture
def run(capsys):
    def run(*arguments):
        with pytest.raises(SystemExit) as stopped:
            main([str(x) for x in arguments])
        printed = capsys.readouterr()
        return stopped.value.code, printed.out, printed.err

    return run


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return dict(zip("qkv", rng.standard_normal((3, 2, 30, 8)).astype(np.float32), strict=True))


def failed(result, code, *parts):
    """One line on stderr that holds all parts, nothing on stdout."""
    assert result[0] == code
    assert result[1] == ""
    assert result[2].count("\n") == 1
    assert result[2].startswith("kerneltrick: ")
    for part in parts:
        assert part in result[2]


def test_the_default_run_prints_one_row_for_each_map(run):
    code, out, err = run("compare", "--causal")
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    rows = [line.split()[0] for line in out.splitlines() if line.startswith(" ") and line.strip()]
    assert rows[2:] == ["softmax", *default_maps(512)]


def test_the_table_shows_the_numbers_of_the_analysis(run):
    _, out, _ = run("compare", *SMALL, "--maps", "taylor:order=2", "--seed", "3")
    q, k, v = analysis.synthetic(SMALL[1], 3)
    quality = analysis.analyze_map(q, k, v, "taylor:order=2")
    row = next(line for line in out.splitlines() if "taylor" in line).split()
    assert row[1:5] == [
        "45",
        f"{quality.weights.correlation:.3f}",
        f"{quality.output_relative_error:.3f}",
        f"{quality.weights.mse:.1e}",
    ]
    assert row[6:] == [f"{quality.state_bytes:,}", ">", "0", "0"]


def test_long_map_names_stay_within_100_columns(run):
    long = "favor:features=256,kind=hyperbolic,seed=123456789,orthogonal=false"
    _, out, _ = run("compare", *SMALL, "--maps", long)
    assert max(map(len, out.splitlines())) <= 100


def test_the_share_of_negative_weights_and_undefined_rows_are_shown(run, tmp_path, arrays):
    arrays["q"][:, :3] = -np.abs(arrays["q"][:, :3])
    arrays["k"] = np.abs(arrays["k"])
    np.savez(tmp_path / "qkv.npz", **arrays)
    _, out, _ = run("compare", tmp_path / "qkv.npz", "--maps", "relu,identity")
    relu = next(line for line in out.splitlines() if line.startswith(" relu"))
    assert relu.split()[-1] == "6"
    assert "% < 0" in next(line for line in out.splitlines() if "identity" in line)


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["elu,relu"], ["elu", "relu"]),
        (["elu relu; exp"], ["elu", "relu", "exp"]),
        (["elu", "relu"], ["elu", "relu"]),
        (
            ["favor:features=256,kind=trig,elu"],
            ["favor:features=256,kind=trig", "elu"],
        ),
        (
            ["poly:degree=2,constant=0 favor:features=8"],
            ["poly:degree=2,constant=0", "favor:features=8"],
        ),
    ],
)
def test_lists_of_maps_are_unambiguous(texts, expected):
    assert split_maps(texts) == expected


def test_json_holds_every_number(run, tmp_path):
    path = tmp_path / "out.json"
    code, out, _ = run(
        "compare", *SMALL, "--maps", "elu,favor:features=8,kind=trig", "--json", path
    )
    assert code == 0
    assert "elu" in out
    report = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert report["format"] == "kerneltrick.compare/1"
    assert [row["map"] for row in report["maps"]] == ["elu", "favor:features=8,kind=trig"]
    q, k, v = analysis.synthetic(SMALL[1])
    expected = analysis.analyze_map(q, k, v, "elu").to_dict()
    assert report["maps"][0]["quality"] == expected
    assert report["shape"] == [2, 48, 8]
    assert list(tmp_path.iterdir()) == [path]


def test_undefined_numbers_are_null_in_json(run, tmp_path, arrays):
    arrays["q"], arrays["k"] = -np.abs(arrays["q"]), np.abs(arrays["k"])
    np.savez(tmp_path / "qkv.npz", **arrays)
    code, *_ = run("compare", tmp_path / "qkv.npz", "--maps", "relu", "--json", tmp_path / "o.json")
    assert code == 0
    report = json.loads((tmp_path / "o.json").read_text(), parse_constant=pytest.fail)
    assert report["maps"][0]["quality"]["weights"]["mse"] is None
    assert report["maps"][0]["quality"]["weights"]["undefined_rows"] == 60


def test_quiet_prints_nothing(run, tmp_path):
    code, out, err = run(
        "compare", *SMALL, "--maps", "elu", "--quiet", "--json", tmp_path / "o.json"
    )
    assert (code, out, err) == (0, "", "")
    assert (tmp_path / "o.json").exists()


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_files_are_read(run, tmp_path, arrays, suffix, dtype):
    arrays = {name: x.astype(dtype) for name, x in arrays.items()}
    path = tmp_path / f"qkv.{suffix}"
    np.savez(path, **arrays, other=np.zeros(1)) if suffix == "npz" else (
        safetensors.numpy.save_file(arrays, path)
    )
    code, out, _ = run("compare", path, "--maps", "elu", "--json", tmp_path / "o.json")
    assert code == 0
    assert f"qkv.{suffix}" in out
    quality = json.loads((tmp_path / "o.json").read_text())["maps"][0]["quality"]
    assert quality == analysis.analyze_map(*(arrays[x] for x in "qkv"), "elu").to_dict()


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (("--maps", "eluu"), ("'eluu'", "did you mean 'elu'")),
        (("--maps", "favor:feature=8"), ("'feature'", "did you mean 'features'")),
        (("--maps", "favor:features=7,kind=trig"), ("even", "7")),
        (("--maps", "cosformer"), ("horizon",)),
        (("--maps", "cosformer:horizon=5"), ("horizon", "47")),
        (("--maps", " ,"), ("--maps names no map", "elu")),
        (("--synthetic", "gausian"), ("did you mean 'gaussian'",)),
        (("--synthetic", "gaussian:n=-3"), ("n", "-3")),
        (("--seed", "x"), ("--seed",)),
        (("--seed", "-1"), ("seed", "-1")),
        (("--colour",), ("--colour",)),
        (("nowhere.npz",), ("nowhere.npz",)),
    ],
)
def test_wrong_arguments_are_one_line_and_code_2(run, arguments, parts):
    given = arguments if {"--synthetic", "nowhere.npz"} & set(arguments) else (*SMALL, *arguments)
    failed(run("compare", *given), 2, *parts)


def test_a_file_and_synthetic_data_exclude_each_other(run, tmp_path, arrays):
    np.savez(tmp_path / "qkv.npz", **arrays)
    failed(run("compare", tmp_path / "qkv.npz", *SMALL), 2, "not both")


def test_an_unknown_command_is_code_2(run):
    failed(run("comapre"), 2, "comapre")


def bad_files(folder, arrays):
    """Files that cannot be used, each with words of its error."""
    objects = {**arrays, "v": np.array([{"a": 1}], dtype=object)}
    spoiled = {**arrays, "k": arrays["k"].copy()}
    spoiled["k"][1, 2, 3] = math.nan
    np.savez(folder / "pickle.npz", **objects)
    np.savez(folder / "nan.npz", **spoiled)
    np.savez(folder / "keys.npz", q=arrays["q"], key=arrays["k"], v=arrays["v"])
    np.savez(folder / "shape.npz", **{**arrays, "k": arrays["k"][..., :3]})
    np.savez(folder / "integers.npz", **{**arrays, "q": arrays["q"].astype(np.int64)})
    np.savez(folder / "dtypes.npz", **{**arrays, "q": arrays["q"].astype(np.float64)})
    np.savez(folder / "whole.npz", **arrays)
    (folder / "truncated.npz").write_bytes((folder / "whole.npz").read_bytes()[:-700])
    (folder / "noise.npz").write_bytes(b"not an archive")
    (folder / "noise.safetensors").write_bytes(b"\xff" * 64)
    (folder / "empty.npz").write_bytes(b"")
    (folder / "data.csv").write_text("1,2,3")
    return {
        "pickle.npz": ("pickled",),
        "nan.npz": ("k holds 1 value", "(1, 2, 3)"),
        "keys.npz": ("no array 'k'", "found key, q, v"),
        "shape.npz": ("keys have 3 features but queries have 8",),
        "integers.npz": ("q has dtype int64",),
        "dtypes.npz": ("one dtype", "float64"),
        "truncated.npz": ("cannot be read",),
        "noise.npz": ("cannot be read",),
        "noise.safetensors": ("cannot be read",),
        "empty.npz": ("cannot be read",),
        "data.csv": ("*.npz or *.safetensors",),
    }


def test_bad_files_are_one_line_and_code_1(run, tmp_path, arrays):
    for name, parts in bad_files(tmp_path, arrays).items():
        failed(run("compare", tmp_path / name, "--maps", "elu"), 1, name, *parts)


def test_an_unwritable_path_fails_before_the_work(run, tmp_path, monkeypatch):
    monkeypatch.setattr(app_module, "compare_maps", lambda *a, **k: pytest.fail("work was started"))
    failed(run("compare", "--json", tmp_path / "no" / "o.json"), 2, "cannot write", "o.json")
    failed(run("compare", "--json", tmp_path), 2, "it is a folder")


def test_a_failed_run_leaves_the_previous_report(run, tmp_path, monkeypatch):
    path = tmp_path / "o.json"
    path.write_text("before")

    def fail(*arguments, **keywords):
        raise MemoryError

    monkeypatch.setattr(app_module, "compare_maps", fail)
    failed(run("compare", *SMALL, "--json", path), 1, "memory")
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("arguments", [("version",), ("--version",)])
def test_the_version_is_printed(run, arguments):
    assert run(*arguments) == (0, f"kerneltrick {kt.__version__}\n", "")


def test_help_says_how_to_list_maps(run):
    code, out, _ = run("compare", "--help")
    assert code == 0
    assert "separated by commas" in " ".join(out.split())
    code, out, _ = run()
    assert code == 0
    assert "compare" in out


def test_it_runs_as_a_module():
    command = [sys.executable, "-m", "kerneltrick", "compare", *SMALL, "--maps", "elu", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = subprocess.run([*command[:3], "--bad"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("kerneltrick: ")
    assert "Traceback" not in done.stderr


def test_the_command_of_the_package_is_this_one():
    assert typer.main.get_command(app_module.app).name == "kerneltrick"


def test_importing_the_analysis_loads_nothing_optional():
    code = (
        "import sys, kerneltrick, kerneltrick.analysis\n"
        "bad = {'typer', 'rich', 'torch', 'jax', 'sympy', 'sklearn', 'matplotlib'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
