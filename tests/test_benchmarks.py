"""The formulas that the engines are compared with are right, and the benchmark scripts run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from cases import each

import kerneltrick as kt

FOLDER = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(autouse=True)
def _path(monkeypatch):
    monkeypatch.syspath_prepend(str(FOLDER))


def quick(name, *options):
    """What a benchmark prints of tiny sizes."""
    command = [sys.executable, str(FOLDER / f"{name}.py"), "--quick", *map(str, options)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def here(monkeypatch, capsys):
    """Run the main function of a benchmark in this process, and return what it prints."""
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()

    def here(module):
        monkeypatch.setattr(sys, "argv", [module.__name__, "--quick"])
        module.main()
        return capsys.readouterr().out

    yield here
    torch.set_num_threads(threads)


def written(module, folder, *options):
    """The rows of the tables that a benchmark writes into a page, between its marks."""
    page = folder / "performance.md"
    page.write_text(f"title\n{module.START}\n{module.END}\nend\n", encoding="utf-8")
    printed = quick(module.__name__, "--write", page, *options)
    text = page.read_text(encoding="utf-8")
    stamp, rest = text.removeprefix(f"title\n{module.START}\n").split("\n", 1)
    assert stamp.startswith("<!-- made by kerneltrick ")
    assert rest == f"{printed}{module.END}\nend\n"
    assert str(folder) not in text
    return [line for line in printed.splitlines() if line.startswith("| ")]


def check_starts(rows, *expected):
    """Each row starts as one of (start, how many rows)."""
    for start, count in expected:
        found = [row for row in rows if row.startswith(f"| {start}")]
        assert len(found) == count, start
        rows = [row for row in rows if row not in found]
    assert rows == []


@each("n", [1, 150])
def test_formulas_by_hand_equal_the_engines(n):
    import bench

    for case, function in bench.runs().items():
        q, k, v = bench.inputs(n, case.library)
        if "softmax" in case.name:
            expected = kt.softmax_attention(q, k, v, causal=case.causal)
        else:
            expected = kt.linear_attention(q, k, v, "elu", causal=case.causal)
        np.testing.assert_allclose(
            function(q, k, v), expected, rtol=2e-4, atol=2e-5, err_msg=str(case)
        )


def test_cases_that_would_need_too_much_memory_are_known():
    import bench

    skipped = {(c.name, n) for c in bench.CASES for n in bench.LENGTHS if c.bytes(n) >= bench.LIMIT}
    assert ("n×n formula", 16384) in skipped
    assert not any(name in (bench.OURS, "chunk formula", "softmax (SDPA)") for name, _ in skipped)


@pytest.mark.slow
def test_a_quick_run_writes_its_tables(tmp_path):
    import bench

    rows = [row for row in written(bench, tmp_path) if "**kerneltrick**" in row]
    rows = [row for row in rows if row.startswith("| PyTorch")]
    assert len(rows) == 4
    assert all(len(row.split("|")) == 3 + len(bench.QUICK_LENGTHS) for row in rows)
    assert rows[0].count("(×1.00)") == len(bench.QUICK_LENGTHS)
    assert "–" not in rows[0]
    assert [path.name for path in tmp_path.iterdir()] == ["performance.md"]


def test_useful_flops_are_those_of_the_targets():
    import native

    n, m, H, M, D = 100, 7, 8, 64, 64
    assert native.causal_flops(n, m) == n * H * (4 * m * M + 64 * (m + M))
    assert native.full_flops(n, m) == n * H * 4 * m * M
    assert native.gradient_flops(n, m) == n * H * (14 * m * M + 64 * (4 * m + 3 * M))
    assert native.favor_flops(n, m) == n * H * (4 * m * M + 64 * (m + M) + 4 * D * m)


@each(
    "value, digits, limits, shown",
    [
        (0.5968, 2, {"least": 0.6}, "0.597"),  # "0.60" would look as if it met the target
        (0.59996, 2, {"least": 0.6}, "0.59996"),
        (0.6, 2, {"least": 0.6}, "0.60"),
        (0.604, 2, {"least": 0.6}, "0.60"),
        (0.73, 2, {"least": 0.6}, "0.73"),
        (9.96, 1, {"least": 10}, "9.96"),
        (1.3004, 2, {"most": 1.3}, "1.3004"),
        (1.2996, 2, {"most": 1.3}, "1.30"),
        (16.04, 1, {"most": 16}, "16.04"),
    ],
)
def test_a_measured_figure_never_contradicts_its_verdict(value, digits, limits, shown):
    import native

    assert native.rounded(value, digits, **limits) == shown
    assert native.significant(41.23, most=60) == "41.2"
    assert native.significant(10.04, most=10) == "10.04"


def test_a_rate_just_below_its_target_is_printed_with_the_digits_that_show_it(monkeypatch):
    import native

    run = native.Bench.__new__(native.Bench)
    run.sizes, run.rates, run.gemm = native.QUICK, [], None
    gemm = 2 * native.QUICK.gemm**3  # at one flop/s
    monkeypatch.setattr(run, "race", lambda *_: ([1 / 0.5968, float(gemm)], True), raising=False)
    row = str(run.rate("a case", lambda: None, 1.0, 0.60))
    assert "| 0.597 (" in row
    assert row.endswith("| ≥ 0.60 of sgemm | **no** |")


def test_figures_on_the_page_agree_with_their_verdicts():
    page = (FOLDER.parent / "docs/performance.md").read_text(encoding="utf-8")
    pattern = re.compile(
        r"^\| [^|]* \| (?:n = )?([\d.]+)[^|]* \| "
        r"[^|]*?([≥≤]) ([\d.]+)[^|]* \| (yes|\*\*no\*\*) \|$",
        re.M,
    )
    rows = pattern.findall(page)
    assert len(rows) > 50
    for shown, sign, target, met in rows:
        reached = float(shown) >= float(target) if sign == "≥" else float(shown) <= float(target)
        assert reached == (met == "yes"), (shown, sign, target, met)


@pytest.mark.slow
def test_a_quick_run_prints_every_target_of_the_delta_rule(tmp_path):
    import delta_peers

    pytest.importorskip("kerneltrick._core")
    pytest.importorskip("transformers")
    check_starts(
        written(delta_peers, tmp_path)[1:],
        ("gated, forward, n =", 9),
        ("gated, forward+backward, n =", 1),
        ("KDA, ", 3),
        ("general rule ", 1),
        ("a decoding step ", 2),
    )


@pytest.mark.slow
def test_a_quick_run_prints_every_target_of_jax(tmp_path):
    import jax_peers

    pytest.importorskip("kerneltrick._core")
    pytest.importorskip("jax")
    rows = written(jax_peers, tmp_path)[1:]
    cases = ["elu", "elu", "Hedgehog", "gated delta rule", "a call of 16 tokens"]
    assert [row.split(",")[0] for row in rows] == [f"| {case}" for case in cases]


@pytest.mark.slow
def test_a_quick_run_prints_a_layer_in_onnx_runtime(tmp_path):
    import onnx_layers

    for package in ("kerneltrick._core", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    rows = [row for row in written(onnx_layers, tmp_path) if row.startswith("| `")]
    cases = ("prefill, n = 32", "prefill, n = 64", "a decoding step")
    assert [row.split(" | ")[0] for row in rows] == [
        f"| `{onnx_layers.MIXERS[0]}`, {case}" for case in cases
    ]
    for row in rows:
        assert len(re.findall(r"[\d.]+ ms", row)) == 3
        assert len(re.findall(r"[\d.]+×", row)) == 2


@pytest.mark.slow
def test_a_benchmark_of_models_continues_after_its_last_phase(tmp_path):
    import models

    pytest.importorskip("transformers")
    results, name = tmp_path / "models.json", "mamba:130m float32"
    before = {"time": [2.0, 1.0], "memory": [2.0, 1.0], "tokens": 16}
    settings = {"version": kt.__version__, "tokens": 16, "layers": 4}
    kept = {"settings": settings, "models": {name: {"prefill": before}}}
    results.write_text(json.dumps(kept), encoding="utf-8")
    rows = written(models, tmp_path, "--results", results, "--models", "mamba:130m")
    found = json.loads(results.read_text(encoding="utf-8"))["models"][name]
    assert set(found) == set(models.PHASES)
    assert found["prefill"] == before
    (row,) = [row for row in rows if "mamba:130m" in row]
    assert row.count("× (") == 5


@pytest.mark.slow
def test_a_quick_run_prints_every_step_of_decoding(tmp_path):
    import steps

    pytest.importorskip("kerneltrick._core")
    pytest.importorskip("transformers")
    rows = written(steps, tmp_path)[1:]
    assert len(rows) == 6
    assert all("× (" in row for row in rows)


@pytest.mark.slow
def test_a_quick_run_prints_every_target_of_the_core(tmp_path):
    import native

    pytest.importorskip("kerneltrick._core")
    lines = written(native, tmp_path)[1:]
    rows = [line.split(" | ") for line in lines]
    assert {len(row) for row in rows} == {4}
    measured = [row for row in rows if not row[1].startswith("skipped")]
    assert {row[3].split()[0] for row in measured} <= {"yes", "**no**"}
    assert len(rows) - len(measured) <= 4
    check_starts(
        lines,
        ("causal ELU forward, n =", 2),
        ("causal ELU float64 forward, n =", 1),
        ("full ELU forward, n =", 2),
        ("causal ELU forward+backward, n =", 2),
        ("causal forward+backward against the plain-torch chunk formula", 1),
        ("causal forward against the plain-torch chunk formula", 1),
        ("causal forward against scaled_dot_product_attention", 1),
        ("break-even with scaled_dot_product_attention", 1),
        ("taylor:order=2, d = 16", 2),
        ("poly:degree=2, d = 64", 2),
        ("favor:features=256, d = 64", 2),
        ("softmax causal forward against scaled_dot_product_attention", 2),
        ("softmax causal forward+backward against scaled_dot_product_attention", 1),
        ("ELU, window 64, causal forward, n =", 2),
        ("Hedgehog m = 128, window 64, forward+backward, n =", 1),
        ("a decay per token", 4),
        ("a decay per feature", 4),
        ("H = 1, ", 2),
        ("extra memory, ", len(native.FUSED) + len(native.WINDOWS) + 1),
        ("decode, ", 4),
        ("a call of 16 tokens, ", 2),
        ("wheel", 1),
        ("import ", 1),
    )


def test_maps_whose_memory_is_measured_are_the_fused_ones():
    import native
    from kerneltrick import maps
    from kerneltrick.engines._core_call import layout

    kinds = {maps.get(name).core_recipe(16, 0).kind for name in native.FUSED}
    assert kinds == set(layout().maps)


@pytest.mark.slow
def test_other_quick_runs_print_their_tables():
    """One thread with two, and several processes."""
    pytest.importorskip("kerneltrick._core")
    printed = quick("threads", "--load", 1)
    rows = [line.split(" | ") for line in printed.splitlines() if " ms | " in line]
    assert len(rows) == 2 * 3 + 1
    assert all(float(row[3]) > 0 for row in rows)
    printed = quick("scale")
    assert printed.count("(target ×") == 2
    assert "of state bytes × ranks" in printed
    assert "the same numbers" in printed


@pytest.mark.slow
def test_quick_runs_of_a_language_model_and_of_its_levels_print_their_tables(here):
    import language_model
    import levels

    assert here(language_model).count("| elu") == 4
    rows = [line.split(" | ") for line in here(levels).splitlines() if line.startswith("| ")]
    assert [len(row) for row in rows] == [10, 10, 10]


def test_the_model_that_ours_is_timed_against_computes_softmax_attention():
    import language_model as timed
    import torch

    text = torch.randint(timed.VOCABULARY, (1, 12))
    ours, theirs = timed.model("softmax"), timed.model(timed.SDPA)
    with torch.no_grad():
        whole, _ = ours(text)
        torch.testing.assert_close(theirs(text)[0], whole)
        state = tuple(timed.Cache(20) for _ in range(timed.LAYERS))
        theirs(text[:, :10], state)
        for t in (10, 11):
            logits, state = theirs(text[:, t : t + 1], state)
            torch.testing.assert_close(logits, whole[:, t : t + 1])
    _, kept = ours(text)
    assert sum(x.nbytes for x in state) == sum(x.nbytes for x in kept)


def test_both_passes_of_a_level_give_the_same_shape_and_the_softmax_one_is_softmax():
    import levels
    import torch

    torch.manual_seed(0)
    with torch.inference_mode():
        linear, softmax = levels.operators(12)
        assert linear().shape == softmax().shape == (1, levels.HEADS, 12, levels.HEAD_WIDTH)
        x, theirs = torch.randn(1, 12, levels.WIDTH), levels.softmax_layer(0)
        ours = kt.torch.Attention(levels.WIDTH, levels.HEADS, feature_map="softmax", rotary=True)
        ours.load_state_dict(theirs.state_dict())
        torch.testing.assert_close(theirs(x)[0], ours(x)[0])
        logits = [call()[0].shape for call in levels.models(12)]
        assert logits == [(1, 12, levels.VOCABULARY)] * 2
