"""`kerneltrick prove` and `kerneltrick costs`: what they print, how they exit, how they fail."""

import json
import re
import shlex
import subprocess
import sys

import pytest

pytest.importorskip("sympy")

from kerneltrick import costs, proofs
from kerneltrick._install import install_command
from kerneltrick.analysis import _timing
from kerneltrick.proofs import _prove


@pytest.fixture
def here(monkeypatch):
    """Decide in this process; a separate process costs a second and few tests need it."""
    prove = _prove.prove
    monkeypatch.setattr(
        proofs, "prove", lambda kind, claim, timeout: prove(kind, claim, timeout=None)
    )


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(_timing, "SECONDS", 0.0)
    monkeypatch.setattr(_timing, "LENGTHS", (32, 64, 128))


def failed(result, *parts, code=3):
    """Check for one line on stderr with all parts, nothing on stdout, and an error code."""
    assert result[:2] == (code, "")
    assert result[2].count("\n") == 1
    for part in parts:
        assert part in result[2]


@pytest.mark.parametrize(
    ("kind", "claim", "code", "says"),
    [
        ("map", "[1, √2*x, x[i]*x[j] for i, j] gives (q·k + 1)**2", 0, "every d"),
        ("map", "[x[i]*x[j] for i<=j] gives (q·k)**2", 1, "scale this feature by √2"),
        ("map", "[x[i]*x[j] for i<=j] = (q·k)**2", 1, "scale this feature by √2"),
        ("map", "elu gives c*(q·k)", 1, "c = 2"),
        ("map", "t2r gives t2r", 2, "not a proof"),
        ("identity", "(a + b)**2 = a**2 + 2*a*b + b**2", 0, "same polynomial"),
        ("identity", "(a + b)**2 = a**2 + b**2", 1, "a·b: left has 2, right has 0"),
        ("cost", "quadratic: O(n*D**2*M)", 0, "which is O(n·D²·M)"),
        ("cost", "multi-query decoding traffic: O(b*n*d)", 1, "the term d² is missing"),
        ("einsum", "bd,hdk->bhk", 0, "contracts d"),
        ("einsum", "bd,dq->bhq", 1, "comes from nowhere"),
        ("sign", "exp(q·k) > 0", 0, "(0, ∞)"),
        ("sign", "-exp(q·k) can vanish", 1, "never 0"),
        ("psd", "exp(q·k)", 0, "power series"),
        ("psd", "elu(q·k) + 1", 1, "eigenvalue -0.0114"),
        ("psd", "norm(q + k) - norm(q - k)", 2, "no rule proves"),
        ("moments", "Var[q·k] = d where mu = 0, sigma = 1", 0, "simulated"),
        ("moments", "Var[x*y] = Var[x]*Var[y]", 1, "right where mu_x = 0"),
        ("dimension", "taylor:order=2 has d**2 features", 1, "3·d/2"),
        ("shapes", "phi.T @ S -> n M where phi: n m, S: m M", 1, "phi @ S fits"),
        ("gradient", "hard trains k", 1, "the gradient to every k is 0"),
        ("ranking", "relu beats elu", 0, "MSE"),
    ],
)
def test_exit_code_and_reason_of_each_kind(run, here, kind, claim, code, says):
    found, out, err = run("prove", kind, claim)
    assert (found, err) == (code, "")
    assert out.startswith({0: "TRUE: ", 1: "FALSE: ", 2: "UNDECIDED: "}[code])
    assert says in re.sub(r"\s+", " ", out)


def test_json_is_the_verdict(run, here):
    code, out, _ = run("prove", "einsum", "bd,dq->bhq", "--json")
    assert code == 1
    read = json.loads(out, parse_constant=pytest.fail)
    assert read["status"] == "false"
    assert read["claim"] == "einsum bd,dq->bhq"
    assert read["details"][0].startswith("meant may be bd,hdq->bhq")


def test_unreadable_claims_show_the_character(run, here):
    code, out, err = run("prove", "identity", "q·k + = 1")
    assert (code, out) == (3, "")
    message, shown, caret = err.splitlines()
    assert message.startswith("kerneltrick: expected a number")
    assert shown[caret.index("^")] == "="


def test_wrong_arguments_are_one_line(run, here):
    failed(run("prove", "nothing", "x"), "unknown kind of claim 'nothing'", "map")
    failed(run("prove", "psd"), "the claim is missing", "elu(q·k) + 1")
    failed(run("prove", "psd", "q·k", "--timeout", "0"), "--timeout must be > 0")
    failed(run("prove", "psd", "q·k", "more"), "unexpected extra argument")
    failed(run("prove", "psd", "q·k + c"), "c has no value")
    failed(run("prove", "cost", "sofmax: O(n)"), "did you mean 'softmax'")
    failed(run("prove"), "KIND")


def test_the_time_limit_holds_on_the_command_line(run):
    # No process can start within a hundredth of a second on any machine.
    code, out, _ = run("prove", "identity", "(a + b)**16 = 1", "--timeout", "0.01")
    assert code == 2
    assert "no decision within 0.01 s" in out


def test_the_command_runs_as_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "kerneltrick", "prove", "identity", "(a + b)**2 = a**2 + b**2"],
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 1
    assert "a·b: left has 2, right has 0" in done.stdout


def test_an_error_is_never_taken_for_an_answer(run, here, tmp_path):
    """`prove` and `lab check` answer with 0, 1 or 2, and fail with 3."""
    failed(run("prove", "identity"), "the claim is missing")
    failed(run("prove", "identity", "a = a", "--timeout", "soon"), "--timeout")
    failed(run("prove", "identity", "a = a", "--nothing"), "unexpected extra argument")
    failed(run("prove", "map", "nothing gives q·k"), "unknown feature map")
    failed(run("lab", "check", tmp_path / "none"), "no file or folder")
    failed(run("lab", "check", tmp_path, "--seconds", 0), "--seconds")
    failed(run("lab", "check", tmp_path), "no lab found", code=2)  # nothing to grade
    _, out, _ = run("--help")
    text = re.sub(r"\s+", " ", out)
    assert "`prove` exits with 0 (true), 1 (false), 2 (undecided) or 3 (error)." in text
    assert "`lab check` exits with 0 (all correct), 1 (something is wrong), 2 (nothing" in text


def test_help_and_version_do_not_load_sympy():
    code = (
        "import sys\nfrom kerneltrick.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print('sympy' in sys.modules or 'matplotlib' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8")
    assert done.stdout.splitlines()[-1] == "False", done.stderr
    assert "prove" in done.stdout
    assert "costs" in done.stdout


def test_without_sympy_it_says_what_to_install(run, monkeypatch):
    for name in [name for name in sys.modules if name.startswith("kerneltrick.proofs")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr("kerneltrick.proofs", raising=False)
    monkeypatch.setitem(sys.modules, "sympy", None)
    failed(run("prove", "psd", "q·k"), install_command("proofs"))


# costs


def test_costs_print_the_table_the_ratio_and_both_crossovers(run, quick):
    code, out, err = run("costs", "--n", 4096, "--d", 64)
    assert (code, err) == (0, "")
    assert max(map(len, out.splitlines())) <= 100
    text = re.sub(r"\s+", " ", out)
    assert "n²·d = 1.07 G against n·d² = 16.8 M: ×64" in text
    assert "elu: ×64 cheaper than softmax, ×63 with Z and φ; wins from n = 66 on paper" in text
    assert text.count("measured on this machine") == 2
    assert "softmax, weights formed: n²·D + n²·M" in text
    row = next(line for line in out.splitlines() if "linear, elu" in line).split()
    assert row[2:4] == ["34.1", "M"]


def test_costs_as_json_are_the_counts(run, quick):
    code, out, _ = run("costs", "--n", 1000, "--d", 32, "--values", 80, "--json", "--map", "elu")
    assert code == 0
    read = json.loads(out, parse_constant=pytest.fail)
    assert read["format"] == "kerneltrick.costs/1"
    rows = {row["name"]: row for row in read["rows"]}
    assert rows["softmax, weights formed"]["numbers"]["multiply_adds"] == 112_000_000
    assert rows["linear, elu"]["multiply_adds"] == "2·n·D·M + 2·n·D"
    paper = costs.paper_crossover(costs.Sizes(1000, 32, 80), "elu")
    assert read["crossover"][0]["on_paper"] == paper
    assert read["measured"]["elu"]["lengths"] == [32, 64, 128]


def test_costs_of_windows(run, quick):
    maps = ("--map", "elu@window=64,sinks=4,softmax@window=64")
    code, out, err = run("costs", "--n", 4096, "--d", 64, *maps)
    assert (code, err) == (0, "")
    text = re.sub(r"\s+", " ", out)
    assert "elu@window=64,sinks=4: ×15.9 cheaper than softmax; wins from n = 195 on paper" in text
    assert "softmax@window=64: ×32.5 cheaper than softmax; wins from n = 65 on paper" in text
    assert text.count("measured on this machine against") == 2
    assert "causal, softmax@window=64: 64·n·D + 64·n·M - 2016·D - 2016·M" in text
    read = json.loads(run("costs", "--json", "--no-measure", *maps)[1])
    assert [row["on_paper"] for row in read["crossover"]] == [195, 65]
    failed(run("costs", "--decode", *maps), "not training or decoding", code=2)
    failed(run("costs", "--n", 60, *maps), "n ≥ window + sinks = 68", code=2)
    failed(run("costs", "--map", "softmax"), "needs a window", code=2)


def test_costs_of_decoding(run):
    code, out, _ = run("costs", "--decode", "--kv-heads", 2, "--heads", 8, "--no-measure")
    assert code == 0
    for name in ("multi-head", "grouped", "multi-query", "linear"):
        assert f"{name} decoding" in out
    assert "n steps" in out


def test_costs_of_training(run):
    code, out, _ = run("costs", "--train", "--no-measure", "--map", "elu")
    assert code == 0
    assert "softmax, weights formed, training: 3·n²·D + 3·n²·M" in out


def test_costs_draw_a_picture(run, quick, tmp_path):
    pytest.importorskip("matplotlib")
    code, out, _ = run("costs", "--map", "elu", "--plot", tmp_path / "costs.png")
    assert code == 0
    assert out.splitlines()[-1] == f"wrote {tmp_path / 'costs.png'}"
    assert (tmp_path / "costs.png").read_bytes().startswith(b"\x89PNG")
    code, out, err = run(
        "costs", "--map", "elu", "--no-measure", "--json", "--plot", tmp_path / "c.svg"
    )
    json.loads(out)
    assert "wrote" in err


def test_wrong_sizes_and_maps_are_one_line(run, tmp_path):
    failed(run("costs", "--n", 0), "n must be a whole number ≥ 1", code=2)
    failed(run("costs", "--d", "x"), "--d", code=2)
    failed(run("costs", "--map", "ell"), "did you mean 'elu'", code=2)
    failed(run("costs", "--map", ","), "names no map", code=2)
    failed(run("costs", "--decode", "--kv-heads", 3), "shared evenly", code=2)
    failed(run("costs", "--map", "taylor:order=9"), "features for d = 64", code=2)
    failed(run("costs", "--plot", tmp_path / "costs.doc"), ".png, .svg, .pdf", code=2)
    failed(run("costs", "--plot", tmp_path / "none" / "costs.png"), "cannot write", code=2)


@pytest.mark.parametrize("redirect", ["| true", ">&-", "> /dev/full"])
def test_an_answer_that_nobody_gets_is_an_error_and_never_false(redirect):
    words = [sys.executable, "-m", "kerneltrick", "prove", "einsum", "bd,dk->bk"]
    script = f"set -o pipefail; {shlex.join(words)} {redirect}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "Traceback" not in done.stderr
