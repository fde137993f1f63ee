"""The command line: what it prints, what it writes, how it fails."""

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import typer.main

import kerneltrick as kt
from kerneltrick import _install, analysis
from kerneltrick._install import install_command
from kerneltrick.analysis import _curves, _timing
from kerneltrick.analysis._store import Store
from kerneltrick.cli import _app as app_module
from kerneltrick.cli._arguments import ERROR, default_maps, split_maps
from kerneltrick.cli._command import first_sentence

SMALL = ("--synthetic", "gaussian:n=48,d=8,heads=2")


@pytest.fixture(autouse=True)
def _short_timing(monkeypatch):
    monkeypatch.setattr(_timing, "SECONDS", 0.0)
    monkeypatch.setattr(_timing, "LENGTHS", (32, 64, 128))
    monkeypatch.setattr(_curves, "FAVOR_FEATURES", (8, 16))
    monkeypatch.setattr(_curves, "LARGEST", 200)


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return dict(zip("qkv", rng.standard_normal((3, 2, 30, 8)).astype(np.float32), strict=True))


def failed(result, code, *parts):
    """Check for one line on stderr that contains all parts, and nothing on stdout."""
    assert result[:2] == (code, ""), result[2]
    assert result[2].count("\n") == 1
    for part in ("kerneltrick: ", *parts):
        assert part in result[2]


def head_metrics(data, text):
    """Compute the metrics of each head with the analysis itself."""
    return [
        [analysis.analyze_map(data.q[i, j], data.k[i, j], data.v[i, j], text) for j in range(2)]
        for i in range(1)
    ]


def test_the_default_run_prints_one_row_for_each_map_and_a_verdict(run):
    code, out, err = run("compare", "--layers", "2", "--heads", "0,5")
    assert (code, err) == (0, "")
    rows = [line.split()[0] for line in out.splitlines() if line.startswith(" ") and line.strip()]
    names = [text for text in default_maps(128) if "hyperbolic" not in text and "@" not in text]
    assert rows[2:4] == ["softmax", "uniform"]
    assert set(names) <= set(rows)
    assert "1 layer × 2 heads, n = 128, d = 32" in out
    assert "Uniform weights, which ignore the queries and keys" in " ".join(out.split())
    assert any(row.startswith("softmax@window=16") for row in rows)
    long = "favor:features=256,kind=hyperbolic,seed=123456789,orthogonal=false"
    _, wide, _ = run("compare", *SMALL, "--maps", long)
    assert max(map(len, (out + wide).splitlines())) <= 100


def test_the_table_shows_the_numbers_of_the_analysis(run):
    _, out, _ = run("compare", *SMALL, "--maps", "taylor:order=2", "--seed", "3")
    data = analysis.synthetic_attention(SMALL[1], 3)
    heads = head_metrics(data, "taylor:order=2")[0]
    row = next(line for line in out.splitlines() if line.startswith(" taylor")).split()
    error = np.mean([h.output_relative_error for h in heads])
    correlation = np.mean([h.weights.correlation for h in heads])
    assert [row[1], row[2], row[4]] == ["45", f"{error:.3f}", f"{correlation:.3f}"]


def test_rows_without_an_output_are_said(run, tmp_path, arrays):
    arrays["q"][:, :3] = -np.abs(arrays["q"][:, :3])
    arrays["k"] = np.abs(arrays["k"])
    np.savez(tmp_path / "qkv.npz", **arrays)
    _, out, _ = run("compare", tmp_path / "qkv.npz", "--maps", "relu,identity")
    assert "excluded from the averages: relu: 6." in out


def test_lists_of_maps_are_unambiguous():
    for texts, expected in (
        (["elu relu; exp"], ["elu", "relu", "exp"]),
        (["elu", "relu"], ["elu", "relu"]),
        (["favor:features=256,kind=trig,elu"], ["favor:features=256,kind=trig", "elu"]),
        (
            ["poly:degree=2,constant=0 favor:features=8"],
            ["poly:degree=2,constant=0", "favor:features=8"],
        ),
    ):
        assert split_maps(texts) == expected


def test_json_holds_every_number(run, tmp_path):
    path = tmp_path / "out.json"
    maps = "elu,favor:features=8,kind=trig"
    code, out, _ = run("compare", *SMALL, "--maps", maps, "--json", path)
    assert code == 0
    assert "elu" in out
    report = json.loads(path.read_text(), parse_constant=pytest.fail)
    assert report["format"] == "kerneltrick.compare/3"
    assert [row["map"] for row in report["maps"]] == ["elu", "favor:features=8,kind=trig"]
    data = analysis.synthetic_attention(SMALL[1])
    for j, quality in enumerate(head_metrics(data, "elu")[0]):
        found = report["maps"][0]["heads"][0][j]
        assert found["mse"] == quality.weights.mse
        assert found["output_error"] == quality.output_relative_error
    assert report["data"]["n"] == 48
    assert report["maps"][1]["heads"][0][0]["kl"] is None
    assert list(tmp_path.iterdir()) == [path]


def test_undefined_numbers_are_null_in_json(run, tmp_path, arrays):
    arrays["q"], arrays["k"] = -np.abs(arrays["q"]), np.abs(arrays["k"])
    np.savez(tmp_path / "qkv.npz", **arrays)
    code, *_ = run("compare", tmp_path / "qkv.npz", "--maps", "relu", "--json", tmp_path / "o.json")
    assert code == 0
    report = json.loads((tmp_path / "o.json").read_text(), parse_constant=pytest.fail)
    assert report["maps"][0]["summary"]["mse"] is None
    assert report["maps"][0]["summary"]["undefined_rows"] == 60
    assert "No map has an output" in report["verdict"]


def test_html_is_written_whole_and_quiet_prints_nothing(run, tmp_path):
    path = tmp_path / "report.html"
    code, out, _ = run("compare", *SMALL, "--maps", "elu", "--html", path)
    assert code == 0
    assert f"wrote {path}" in out.replace("\n", "")
    assert path.read_text().rstrip().endswith("</html>")
    assert list(tmp_path.iterdir()) == [path]
    assert run("compare", *SMALL, "--maps", "elu", "-q", "--html", path) == (0, "", "")


def test_a_stopped_run_keeps_the_report_and_goes_on(run, tmp_path, monkeypatch):
    """The old report remains, and the next run does only the remaining work."""
    path, kept = tmp_path / "report.json", tmp_path / ".report.json.unfinished"
    path.write_text("before")
    command = ("compare", *SMALL, "--maps", "elu relu", "--json", path, "-q")
    put = Store.put

    def dies(self, name, value):
        put(self, name, value)
        if kept.read_text().count("\n") == 6:
            raise KeyboardInterrupt

    monkeypatch.setattr(Store, "put", dies)
    assert run(*command)[0] == 130
    monkeypatch.setattr(Store, "put", put)
    assert path.read_text() == "before"
    store = Store(kept, kept.read_text().splitlines()[0])
    first = {**store.get("limit 0.0"), "entropy": 123.0}  # a mark on work that must not be repeated
    store.put("limit 0.0", first)
    with kept.open("a") as file:
        file.write('0123456789abcdef ["elu 0.0", {"mse"')
    assert run(*command) == (0, "", "")
    report = json.loads(path.read_text())
    assert report["softmax"]["heads"][0][0]["entropy"] == 123.0
    assert all(head is not None for head in report["maps"][1]["heads"][0])
    assert list(tmp_path.iterdir()) == [path]
    before = path.read_text()
    monkeypatch.setattr(app_module, "compare", lambda *_, **__: (_ for _ in ()).throw(MemoryError))
    failed(run(*command[:-1]), 1, "memory")
    assert path.read_text() == before
    assert list(tmp_path.iterdir()) == [path]


def test_other_work_is_not_taken_for_this(run, tmp_path):
    path = tmp_path / "o.json"
    kept = tmp_path / ".o.json.unfinished"
    Store(kept, "other").put("limit 0.0", {"nonsense": 1})
    code, _, err = run("compare", *SMALL, "--maps", "elu", "--json", path)
    assert code == 0
    assert f"{kept} keeps the finished work of an interrupted run with other settings" in err
    assert Store(kept, "other").get("limit 0.0") == {"nonsense": 1}


def test_nan_is_reported_by_layer_and_head(run, tmp_path, arrays):
    arrays["k"][1, 2, 3] = math.nan
    np.savez(tmp_path / "nan.npz", **arrays)
    code, out, _ = run(
        "compare", tmp_path / "nan.npz", "--maps", "elu", "--json", tmp_path / "o.json"
    )
    assert code == 0
    assert "layer 0 head 1: k holds 1 value that is NaN or infinite: left out" in out
    report = json.loads((tmp_path / "o.json").read_text())
    assert report["maps"][0]["heads"][0][1] is None
    assert report["maps"][0]["heads"][0][0]["mse"] > 0


def test_values_too_large_to_compare_are_said(run, tmp_path, arrays):
    """No RuntimeWarning of NumPy (an error in tests), no failure inside LAPACK, no JSON error."""
    path, out = tmp_path / "large.npz", tmp_path / "o.json"
    for name in ("k", "v", "qkv"):
        large = {x: y.astype(np.float64) for x, y in arrays.items()}
        for x in name:
            large[x][1] *= 1e300
        np.savez(path, **large)
        code, printed, _ = run("compare", path, "--maps", "elu,square", "--json", out)
        assert code == 0, name
        assert "Note: layer 0 head 1: " in printed
        assert "whose products overflow: left out" in " ".join(printed.split())
        assert json.loads(out.read_text())["maps"][0]["heads"][0][1] is None
        for x in name:
            large[x][0] *= 1e300
        np.savez(path, **large)
        result = run("compare", path, "--maps", "elu")
        failed(result, 1, "no head is left to compare", "overflow")


def test_the_largest_values_and_scales_are_compared_without_a_warning(run, tmp_path, arrays):
    sizes = {"q": 1e14, "k": 1e14, "v": 1e74}
    data = analysis.AttentionData.from_arrays(
        *(size * arrays[name].astype(np.float64) for name, size in sizes.items())
    )
    analysis.save_attention(data, tmp_path / "large.safetensors")
    code, _, err = run("compare", tmp_path / "large.safetensors", "--json", tmp_path / "o.json")
    assert (code, err) == (0, "")
    failed(run("compare", "--layers", "0", "--heads", "0", "--scale", "1e300"), 1, "overflow")


def test_files_are_read(run, tmp_path, arrays):
    np.savez(tmp_path / "qkv.npz", **arrays)
    safetensors.numpy.save_file(arrays, tmp_path / "qkv.safetensors")
    quality = analysis.analyze_map(*(arrays[x][1] for x in "qkv"), "elu", causal=True)
    out = tmp_path / "o.json"
    for name in ("qkv.npz", "qkv.safetensors"):
        code, text, _ = run("compare", tmp_path / name, "--maps", "elu", "--json", out, "--causal")
        assert code == 0
        assert name in text
        found = json.loads(out.read_text())["maps"][0]["heads"][0][1]
        assert found["mse"] == quality.weights.mse
    failed(run("compare", tmp_path / "qkv.npz", *SMALL), 2, "not both")


def test_wrong_arguments_are_one_line_and_code_2(run):
    for arguments, parts in (
        (("--maps", "eluu"), ("'eluu'", "did you mean 'elu'")),
        (("--maps", "favor:feature=8"), ("'feature'", "did you mean 'features'")),
        (("--maps", "favor:features=7,kind=trig"), ("even", "7")),
        (("--maps", "cosformer"), ("horizon",)),
        (("--maps", "cosformer:horizon=5"), ("horizon", "47")),
        (("--maps", " ,"), ("--maps names no map", "elu")),
        (("--synthetic", "gausian"), ("did you mean 'gaussian'",)),
        (("--synthetic", "gaussian:n=-3"), ("n", "-3")),
        (("--seed", "x"), ("--seed",)),
        (("--colour",), ("--colour",)),
        (("--layers", "7"), ("no layer 7", "there are 0")),
        (("--heads", "a-b"), ("--heads", "'a-b'")),
        (("--heads", "1-0"), ("--heads takes ranges that rise, such as 0-1",)),
        (("--layers", ","), ("--layers names no number",)),
        (("--scale", "0"), ("--scale", "0")),
        (("--maps", "elu,elu"), ("twice",)),
        (("--maps", "poly:degree=99"), ("features", "50,000")),
        (("nowhere.npz",), ("nowhere.npz",)),
    ):
        own = {"--synthetic", "nowhere.npz"} & set(arguments)
        failed(run("compare", *(() if own else SMALL), *arguments), 2, *parts)
    failed(run("comapre"), 2, "comapre", "see kerneltrick --help")
    failed(run("lab", "start", "--foo"), 2, "--foo", "see kerneltrick lab start --help")


def test_a_seed_out_of_range_is_one_line_and_code_2(run):
    for line in (
        "compare",
        "fit x --out y.safetensors",
        "linearize x --text x --out y",
        "train x --out y",
        "generate x",
        *(f"simulate {name}" for name in ("moments", "scaling", "features", "representer", "svm")),
    ):
        for seed in (-1, 2**63):
            words = ("--seed", str(seed), f"between 0 and {2**63 - 1}")
            failed(run(*line.split(), "--seed", seed), 2, *words)


def commands(command=None, path=()):
    """All commands, with the words that call them."""
    command = command or typer.main.get_command(app_module.app)
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, (*path, name))
    if not hasattr(command, "commands"):
        yield path, command


def test_every_command_has_h_and_says_which_numbers_no_library_takes(run):
    for path, command in commands():
        words = list(path)
        assert run(*words, "-h") == run(*words, "--help")
        for each in (each for each in command.params if each.required):
            words += ["x"] if each.param_type_name == "argument" else [each.opts[0], "x"]
        code = ERROR if path[0] in ("prove", "lab") else 2
        for each in command.params:
            kind = getattr(getattr(each, "type_descriptor", None), "annotation", None)
            if each.name == "help" or kind not in (int, float):
                continue
            for number in (10**20, -(10**20)) if kind is int else ("nan", "inf", "-inf"):
                failed(run(*words, each.opts[0], number), code, each.opts[0])


OPTIONAL = [
    *[(line, "torch") for line in ("recall", "inspect", "fit A.npz --out B", "train T --out NEW")],
    *[(f"{line} NONE", "hf") for line in ("generate", "capture --text T --out B", "accelerate",
                                          "linearize --text T --out NEW")],
    ("compare --dask tcp://x:1", "dask"), ("simulate moments --out X.png", "plot"),
]  # fmt: skip


def test_without_a_package_every_command_says_how_to_install_it_here(tmp_path, monkeypatch, arrays):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "T").write_text("some text " * 200)
    np.savez(tmp_path / "A.npz", **arrays)
    script = f"""
import sys
class Without:
    def find_spec(self, name, *_):
        if name in ("torch", "transformers", "matplotlib", "distributed"):
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Without())
from kerneltrick.cli._app import run
for line in {[line.replace("B", "B.safetensors") for line, _ in OPTIONAL]}:
    assert run(line.split()) == 1, line
"""
    start = [sys.executable, "-c", script]
    done = subprocess.run(start, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    said = [line.rpartition(": ")[2] for line in done.stderr.splitlines()]
    assert said == [install_command(extra) for _, extra in OPTIONAL]


def test_an_extra_is_installed_from_where_the_package_came(tmp_path, monkeypatch):
    monkeypatch.chdir(Path(_install.__file__).parents[2])
    assert shlex.split(install_command("hf")) == ["pip", "install", "-e", ".[hf]"]
    monkeypatch.setattr(_install, "__file__", str(tmp_path / "site" / "kerneltrick" / "x.py"))
    git = {"url": "https://x/y", "vcs_info": {"vcs": "git"}}
    for origin, source in (
        (None, "kerneltrick[hf]"),
        ({"url": "file:///a%20b/c", "dir_info": {}}, "/a b/c[hf]"),
        ({"url": "https://x/y.whl", "archive_info": {}}, "kerneltrick[hf] @ https://x/y.whl"),
        (git, "kerneltrick[hf] @ git+https://x/y"),
    ):
        text = json.dumps(origin)
        found = type("Found", (), {"read_text": lambda *_, text=text: text})
        monkeypatch.setattr("importlib.metadata.distribution", lambda _, found=found: found())
        assert shlex.split(install_command("hf")) == ["pip", "install", source]


def test_numbers_are_shown_as_people_write_them():
    """One function shows them: the format g turns to powers of ten from 1,000 on."""
    rooms = [Path(kt.__file__).parent / room for room in ("cli", "hf")]
    found = [path for room in rooms for path in room.glob("*.py")]
    assert [p for p in found if re.search(r"\{[^{}]*:#?\.\d+g\}", p.read_text("utf-8"))] == []


def test_bad_files_are_one_line_and_code_1(run, tmp_path, arrays):
    np.savez(tmp_path / "pickle.npz", **{**arrays, "v": np.array([{"a": 1}], dtype=object)})
    (tmp_path / "noise.npz").write_bytes(b"not an archive")
    (tmp_path / "noise.safetensors").write_bytes(b"\xff" * 64)
    np.savez(tmp_path / "shape.npz", **{**arrays, "k": arrays["k"][..., :3]})
    for name in ("pickle.npz", "noise.npz", "noise.safetensors", "shape.npz"):
        failed(run("compare", tmp_path / name, "--maps", "elu"), 1, name)


def test_what_a_terminal_would_obey_does_not_reach_it(run, tmp_path, arrays):
    q, k, v = (arrays[name][None] for name in "qkv")
    data = analysis.AttentionData.from_arrays(q, k, v, source="\x1b]0;title\x07\x1b[31m\nred")
    analysis.save_attention(data, tmp_path / "x.safetensors")
    code, out, _ = run("compare", tmp_path / "x.safetensors", "--maps", "elu")
    assert code == 0
    assert "\x1b" not in out
    assert "[31m red" in out
    safetensors.numpy.save_file({"\x1b[31mred": q}, tmp_path / "y.safetensors")
    result = run("compare", tmp_path / "y.safetensors")
    failed(result, 1, "[31mred")
    assert "\x1b" not in result[2]


def test_half_a_surrogate_pair_in_a_token_does_not_lose_the_numbers(run, tmp_path, arrays):
    tokens = ["\ud83d", "≥", *"x" * 28]
    data = analysis.AttentionData.from_arrays(*arrays.values(), tokens=tokens, source="\udcff")
    analysis.save_attention(data, tmp_path / "x.safetensors")
    assert analysis.load_attention(tmp_path / "x.safetensors").tokens == tuple(tokens)
    paths = ("--json", tmp_path / "o.json", "--html", tmp_path / "o.html")
    code, _, err = run("compare", tmp_path / "x.safetensors", "--maps", "elu", *paths)
    assert (code, err) == (0, "")
    found = json.loads((tmp_path / "o.json").read_text(encoding="utf-8"))["data"]
    assert (found["tokens"], found["source"]) == (tokens, "\udcff")
    assert "≥" in (tmp_path / "o.json").read_text(encoding="utf-8")


def test_tokens_taken_for_heads_are_said_and_can_be_read_otherwise(run, tmp_path, arrays):
    many = {name: np.swapaxes(x, 0, 1)[None] for name, x in arrays.items()}  # (1, n, heads, d)
    path = tmp_path / "x.npz"
    np.savez(path, **many)
    _, out, _ = run("compare", path, "--maps", "elu")
    assert "read as 30 heads of n = 2; if the data has 2 heads of n = 30" in " ".join(out.split())
    assert "--axes n,heads,d" in out
    _, out, _ = run("compare", path, "--maps", "elu", "--axes", "n,heads,d")
    assert "2 heads, n = 30" in out
    assert "read as" not in out
    found = analysis.load_attention(path, axes="n,heads,d")
    np.testing.assert_array_equal(found.q[0], arrays["q"])
    with pytest.raises(ValueError, match=r"axes must be one of 'heads,n,d' and 'n,heads,d'"):
        analysis.load_attention(path, axes="d,n,heads")
    np.savez(path, **{name: x[0] for name, x in arrays.items()})
    with pytest.raises(ValueError, match=r"three or four axes, not \(30, 8\)"):
        analysis.load_attention(path, axes="n,heads,d")
    failed(run("compare", path, "--axes", "n,d"), 2, "--axes must be")
    failed(run("compare", "--axes", "n,heads,d"), 2, "--axes n,heads,d needs a file")


def test_capture_checks_its_arguments_before_the_work(run, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("hello")
    failed(run("capture", "x", "--text", text, "--out", tmp_path / "o.npz"), 2, ".safetensors")
    missing = tmp_path / "none.txt"
    out = tmp_path / "o.safetensors"
    failed(run("capture", "x", "--text", missing, "--out", out), 2, "none.txt")
    failed(run("capture", "x", "--text", text, "--out", tmp_path / "no" / out.name), 2, "cannot")


def test_an_unwritable_path_fails_before_the_work(run, tmp_path, monkeypatch):
    monkeypatch.setattr(app_module, "compare", lambda *a, **k: pytest.fail("work was started"))
    for option in ("--json", "--html"):
        failed(run("compare", option, tmp_path / "no" / "o.json"), 2, "cannot write", "o.json")
        failed(run("compare", option, tmp_path), 2, "it is a folder")


def test_the_help_shows_whole_sentences_in_three_groups(run):
    code, out, _ = run("--help")
    assert code == 0
    assert "..." not in out.partition("[ARGS]...")[2]
    assert "…" not in out
    places = [out.index(f"\n{name}:\n") for name in (app_module.USE, app_module.CHOOSE)]
    places.append(out.index(f"\n{app_module.UNDERSTAND}:\n"))
    assert places == sorted(places)
    listed = re.findall(r"^  (\w+) ", out[places[0] :], re.MULTILINE)
    command = typer.main.get_command(app_module.app)
    assert set(listed) >= {name for name, each in command.commands.items() if not each.hidden}
    for name, each in command.commands.items():
        if not each.hidden:
            assert first_sentence(each.help) in " ".join(out.split()), name
    assert "version" not in listed  # --version, once


def test_help_says_how_to_list_maps(run):
    code, out, _ = run("compare", "--help")
    assert code == 0
    assert "separated by commas" in " ".join(out.split())
    code, out, _ = run()
    assert code == 0
    assert "compare" in out
    for word in ("version", "--version"):
        assert run(word) == (0, f"kerneltrick {kt.__version__}\n", "")


def test_it_runs_as_a_module():
    command = [sys.executable, "-m", "kerneltrick", "compare", *SMALL, "--maps", "elu", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    done = subprocess.run([*command[:3], "--bad"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith("kerneltrick: ")
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_modules_are_loaded_ends_quietly(tmp_path):
    """Ctrl-C arrives in the middle of an import."""
    module, script = ("-m", "kerneltrick"), ("-c", "from kerneltrick.cli import main; main()")
    stops = "import os, signal, sys, time\nif 'kerneltrick' in sys.modules:\n"
    stops += "    os.kill(os.getpid(), signal.SIGINT)\n    time.sleep(60)\n"
    for start, name in ((module, "typing"), (script, "numpy"), (module, "typer"), (script, "rich")):
        folder = tmp_path / name
        folder.mkdir()
        (folder / f"{name}.py").write_text(stops)
        done = subprocess.run(
            [sys.executable, "-S", *start, "--version"], capture_output=True, text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), *sys.path])},
        )  # fmt: skip
        said = (done.returncode, done.stdout, done.stderr)
        assert said == (130, "", "kerneltrick: stopped\n"), name


def test_an_ignored_ctrl_c_stays_ignored():
    code = (
        "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "from kerneltrick.cli import main\n"
        "try:\n    main(['--version'])\n"
        "finally:\n    print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("True\n")


def test_every_public_name_is_there_and_loaded_on_first_use():
    code = "import sys, kerneltrick as kt\nassert 'numpy' not in sys.modules\n" + "".join(
        f"kt.{name}\n" for name in (*kt.__all__, "analysis", "attention", "engines", "kernels")
    )
    code += (
        "bad = {'typer', 'rich', 'torch', 'jax', 'sympy', 'sklearn', 'matplotlib'}\n"
        "print(sorted(bad & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
    assert set(kt.__all__) <= set(dir(kt))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        kt.nothing  # noqa: B018
