"""The checks find what is wrong, say so in a program that runs, and pass what is right."""

import copy
import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kerneltrick as kt
from kerneltrick import conformance
from kerneltrick._install import install_command
from kerneltrick.conformance import CHECKS, KINDS, Operator, check

OURS = [known.name for known in conformance.known() if "PyTorch" not in known.name]


def delta(q, k, v, beta, log_decay, *, mask=None, segment_ids=None, state=None, dtype=None):
    if dtype is not None:
        q, k, v = (x.astype(dtype) for x in (q, k, v))
    options = {"log_decay": log_decay, "mask": mask, "segment_ids": segment_ids, "state": state}
    return kt.delta_rule(q, k, v, beta, return_state=True, **options)


# One mutant for each check: an operator that breaks this promise.


def wrong_scale(q, k, v, beta, log_decay):
    return kt.delta_rule(q, k, v, beta, log_decay=log_decay, scale=1.1)


def sees_the_future(q, k, v, beta, log_decay):
    return kt.delta_rule(q, k, v + 1e-3 * v[:, :, -1:], beta, log_decay=log_decay)


def counts_pads(q, k, v, beta, log_decay, *, mask=None):
    return kt.delta_rule(q, k, v, beta, log_decay=log_decay)


def reads_pads(q, k, v, beta, log_decay, *, mask=None):
    v = v if mask is None else v + 0 * v + np.where(mask[:, None, :, None], 0, v).sum(2)[:, :, None]
    return kt.delta_rule(q, k, v, beta, log_decay=log_decay, mask=mask)


def ignores_segments(q, k, v, beta, log_decay, *, segment_ids=None):
    return kt.delta_rule(q, k, v, beta, log_decay=log_decay)


def ignores_state(q, k, v, beta, log_decay, *, state=None):
    return kt.delta_rule(q, k, v, beta, log_decay=log_decay, return_state=True)


def mixes_rows(q, k, v, beta, log_decay):
    return kt.delta_rule(q, k, v - v.mean(0), beta, log_decay=log_decay)


def spreads_nan(q, k, v, beta, log_decay):
    return kt.delta_rule(q, k, v, beta, log_decay=log_decay) + 0 * v.sum()


def swallows_nan(q, k, v, beta, log_decay):
    return np.nan_to_num(kt.delta_rule(q, k, v, beta, log_decay=log_decay))


def masks_keys_only(q, k, v, beta, log_decay, *, mask=None):
    beta = beta if mask is None else np.where(mask[:, None], beta, 0)
    decay = log_decay if mask is None else np.where(mask[:, None], log_decay, 0)
    return kt.delta_rule(q, k, v, beta, log_decay=decay.astype(q.dtype))


def changes_its_state(q, k, v, beta, log_decay, *, state=None):
    given = None if state is None else kt.DeltaState(state)
    o, after = kt.delta_rule(q, k, v, beta, log_decay=log_decay, state=given, return_state=True)
    if state is not None:
        state[...] = after.S
    return o, np.array(after.S)


def rounds_twice(q, k, v, beta, log_decay, *, dtype=None):
    out = kt.delta_rule(q, k, v, beta, log_decay=log_decay)
    return out if dtype is None else np.float32(np.round(out * 64) / 64)


MUTANTS = {
    "equals its definition in float64": [wrong_scale],
    "past keeps its bits": [sees_the_future],
    "padding changes nothing": [counts_pads, reads_pads],
    "packed = separate": [ignores_segments],
    "prefill = decode at any split": [ignores_state],
    "batch of one = batch of many": [mixes_rows],
    "NaN stays where it depends": [spreads_nan, swallows_nan],
    "masked rows": [masks_keys_only],
    "rollback": [changes_its_state],
    "half precision within its error": [rounds_twice],
}


def mutant(run, **more):
    source = f"from test_conformance import {run.__name__}; operator = conformance.Operator("
    source += f"{run.__name__}, 'delta_rule')"
    return Operator(run, "delta_rule", promises=frozenset(CHECKS), source=source, **more)


def test_there_is_a_mutant_for_every_check_but_those_with_their_own_test():
    assert {*CHECKS} - {*MUTANTS} == {"gradient against float64", "state saves and loads"}


@pytest.mark.parametrize(
    ("name", "run"),
    [pytest.param(name, run, id=run.__name__) for name, runs in MUTANTS.items() for run in runs],
)
def test_a_broken_promise_is_found_and_its_program_shows_it(name, run, monkeypatch):
    (result,) = check(mutant(run), checks=[name]).results
    assert result.status == "failed", result
    lines = result.reproducer.splitlines()
    assert len(lines) <= 10, result.reproducer
    fails(result.reproducer, monkeypatch)
    assert "n=2" in result.reproducer or "n=3" in result.reproducer or "n=1)" in result.reproducer


def fails(program, monkeypatch):
    """Run a reproducer here: it ends in the assertion that it is about."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    lines = [line for line in program.splitlines() if not line.startswith("print(")]
    with pytest.raises(AssertionError), np.errstate(all="ignore"):
        exec(compile("\n".join(lines), "reproducer", "exec"), {})


def looks_ahead(q, k, v):
    import torch

    return torch.nn.functional.scaled_dot_product_attention(q, k, v)


def test_the_program_of_a_function_on_tensors_shows_its_failure(monkeypatch):
    pytest.importorskip("torch")
    operator = conformance.from_torch(looks_ahead, "softmax_attention")
    (result,) = check(operator, checks=["past keeps its bits"]).results
    assert result.status == "failed"
    fails(result.reproducer, monkeypatch)


def test_what_is_not_promised_is_not_counted_but_said():
    (result,) = check(spreads_nan, kind="delta_rule", checks=["NaN stays where it depends"]).results
    assert (result.status, result.holds) == ("not promised", False)
    (result,) = check(spreads_nan, kind="delta_rule", checks=["rollback"]).results
    assert (result.status, result.holds) == ("not promised", None)
    assert result.detail == "it has no state"


def test_a_wrong_gradient_is_found(monkeypatch):
    torch = pytest.importorskip("torch")

    def detached(q, k, v):
        return kt.linear_attention(q, k.detach(), v, causal=True)

    operator = conformance.from_torch(detached, "linear_attention")
    result = check(operator, checks=["gradient against float64"]).failures[0]
    assert "gradient of k" in result.detail
    right = conformance.find("kerneltrick linear_attention (native, PyTorch)")
    x = conformance.tokens("linear_attention", n=4, d=2)
    wanted = conformance.gradient("linear_attention", x, np.ones_like(x[2]))
    for a, b in zip(right.gradients(x, np.ones_like(x[2])), wanted, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-6)
    assert torch


def streamed(q, k, v, beta, log_decay, *, state=None):
    """The delta rule with a history for a state."""

    def step(state, q, k, v, beta, log_decay):
        return delta(q, k, v, beta, log_decay, state=state)

    axes = (-2, -2, -2, -1, -1)
    history = kt.History(step, axes=axes, every=5) if state is None else copy.copy(state)
    return history.read(q, k, v, beta, log_decay), history


def test_a_history_rolls_back():
    def rewind(state, count):
        made = copy.copy(state)
        made.back(count)
        return made

    def careless(state, count):
        return rewind(state, count - 1)

    names = ["rollback", "prefill = decode at any split"]
    assert not check(mutant(streamed, exact=True, rewind=rewind), checks=names).failures
    assert len(check(mutant(streamed, rewind=careless), checks=names).failures) == 1


def test_a_file_that_loses_bits_is_found():
    def save(state, path):
        np.save(path + ".npy", np.float16(state.S))

    def load(path):
        return kt.DeltaState(np.float32(np.load(path + ".npy")))

    (result,) = check(mutant(delta, save=save, load=load), checks=["state saves and loads"]).results
    assert result.status == "failed"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, marks=[] if name.endswith(("(native)", "(chunked)")) else pytest.mark.slow
        )
        for name in OURS
    ],
)
def test_our_engines_keep_every_promise(name):
    found = check(conformance.find(name))
    assert not found.failures, found
    assert [result.check for result in found.results if result.status == "not promised"] == [
        "gradient against float64"  # NumPy has none
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_our_operators_keep_every_promise_in_pytorch(kind):
    pytest.importorskip("torch")
    found = check(conformance.find(f"kerneltrick {kind} (native, PyTorch)"))
    assert {result.status for result in found.results} == {"passed"}, found


PEERS = [known for known in conformance.known(peers=True) if known.package != "kerneltrick"]
# bfloat16 attention of PyTorch may end the process where a machine announces what it has not.
SAFE = [name for name in CHECKS if "half" not in name]


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(
            known, id=known.name, marks=[] if known.package == "torch" else pytest.mark.slow
        )
        for known in PEERS
    ],
)
def test_peers_keep_what_they_promise_and_reproducers_show_the_rest(known, monkeypatch):
    if not known.installed:
        pytest.skip(f"{known.package} is not installed: {known.install}")
    found = check(known.operator(), checks=SAFE)
    assert not found.failures, found
    for result in found.results:
        if result.reproducer:
            fails(result.reproducer, monkeypatch)


class TestErrors:
    def test_a_wrong_shape_is_refused_by_name(self):
        def flipped(q, k, v):
            return np.swapaxes(v, 1, 2)

        with pytest.raises(conformance.AdapterError, match=r"flipped returned .* shape \(2, 70, 2"):
            check(flipped, kind="softmax_attention")

    def test_a_state_that_is_not_returned_is_refused(self):
        def alone(q, k, v, *, state=None):
            return v

        with pytest.raises(conformance.AdapterError, match=r"must return \(output, state\)"):
            check(alone, kind="softmax_attention")

    def test_a_list_is_refused(self):
        def listed(q, k, v):
            return v.tolist()

        with pytest.raises(conformance.AdapterError, match="must return a NumPy array"):
            check(listed, kind="softmax_attention")

    def test_gradients_of_another_shape_are_refused(self):
        operator = Operator(
            lambda q, k, v: v, "softmax_attention", "odd", gradient=lambda x, c: [c, c]
        )
        with pytest.raises(conformance.AdapterError, match="one array for each input"):
            check(operator, checks=["gradient against float64"])

    def test_an_error_of_the_operator_is_a_failure(self):
        def broken(q, k, v):
            raise RuntimeError("no such kernel")

        found = check(broken, kind="softmax_attention", checks=["past keeps its bits"])
        assert found.failures[0].detail == "it raised RuntimeError: no such kernel"

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"kind": "delta"}, "unknown kind of operator 'delta'; did you mean 'delta_rule'"),
            ({}, "check needs kind="),
            ({"kind": "delta_rule", "checks": ["rollbak"]}, "did you mean 'rollback'"),
        ],
    )
    def test_wrong_arguments(self, arguments, message):
        with pytest.raises(ValueError, match=message):
            check(delta, **arguments)

    def test_an_unknown_operator(self):
        with pytest.raises(ValueError, match="unknown operator 'torch sdpa'"):
            conformance.find("torch sdpa")

    def test_a_peer_that_is_missing_says_how_to_install_it(self):
        known = conformance.KnownOperator(
            "x", "delta_rule", "fla-core", ("no_such_module",), lambda _: None
        )
        assert not known.installed
        with pytest.raises(ImportError, match=re.escape(install_command("peers"))):
            known.operator()
        assert next(conformance.survey([known]))[1] is None


def cli(*arguments, cwd=None):
    command = [sys.executable, "-m", "kerneltrick", "conform", *arguments]
    return subprocess.run(command, capture_output=True, text=True, cwd=cwd, check=False)


def test_the_command_checks_a_function_and_exits_with_1_if_it_fails(tmp_path):
    text = "import kerneltrick as kt\n\ndef rule(q, k, v, *, state=None):\n"
    text += "    return kt.linear_attention(q, k, v, causal=True, return_state=True)\n"
    (tmp_path / "mine.py").write_text(text)
    found = cli("mine:rule", "--kind", "linear_attention", "--json", "x.json", cwd=tmp_path)
    assert found.returncode == 1, found.stderr
    assert "from mine import rule" in found.stdout
    (row,) = json.loads((tmp_path / "x.json").read_text())["operators"]
    statuses = {result["check"]: result["status"] for result in row["results"]}
    assert statuses["prefill = decode at any split"] == "failed"
    assert statuses["past keeps its bits"] == "passed"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "MODULE:NAME"),
        (["json:dumps"], "--kind"),
        (["--kind", "delta_rule"], "give that too"),
        (["no_such_module:f", "--kind", "delta_rule"], "cannot load"),
        ([":f", "--kind", "delta_rule"], "MODULE:NAME"),
        (["math:pi", "--kind", "delta_rule"], "math:pi is of type float; give a function"),
    ],
)
def test_wrong_arguments_of_the_command(arguments, message):
    found = cli(*arguments)
    assert found.returncode in (1, 2)
    assert message in found.stderr
    assert "Traceback" not in found.stderr


def test_the_page_has_a_row_for_every_operator_and_none_of_ours_fails():
    page = Path(__file__).parent.parent / "docs" / "howto" / "conformance.md"
    table = page.read_text(encoding="utf-8").partition("conformance:begin")[2]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    assert [cells[0] for cells in rows[1:]] == [
        known.name for known in conformance.known(peers=True)
    ]
    assert rows[0][1:] == [str(i + 1) for i in range(len(CHECKS))]
    assert not [cells for cells in rows if cells[0].startswith("kerneltrick") and "✗" in cells]


@pytest.mark.parametrize("text", ["def f(:\n", "1 / 0\n", "raise SystemExit(3)\n"])
def test_a_module_that_cannot_be_loaded_is_one_line(tmp_path, text):
    (tmp_path / "mine.py").write_text(text)
    found = cli("mine:f", "--kind", "delta_rule", cwd=tmp_path)
    assert found.returncode == 1
    assert found.stderr.startswith("kerneltrick: cannot load mine:f: ")
    assert found.stderr.count("\n") == 1


def test_the_program_of_an_operator_that_a_module_makes_imports_it(tmp_path):
    text = "from kerneltrick.conformance import Operator\n\n"
    text += "blind = Operator(lambda q, k, v: v, 'softmax_attention', 'blind')\n"
    (tmp_path / "mine.py").write_text(text)
    found = cli("mine:blind", cwd=tmp_path)
    assert found.returncode == 1, found.stderr
    assert "from mine import blind as operator" in found.stdout
