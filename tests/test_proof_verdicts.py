"""Verdicts: what justifies them, how they are printed, and the time limit."""

import json
import math
import re
from pathlib import Path

import pytest

sympy = pytest.importorskip("sympy")

from kerneltrick import proofs  # noqa: E402
from kerneltrick.proofs import _decide, _prove  # noqa: E402
from kerneltrick.proofs._verdict import Counterexample, Derivation, Verdict  # noqa: E402


def test_a_verdict_is_definite_only_with_evidence():
    derived, refuted = Derivation("so it is"), Counterexample("2 ≠ 3", {"a": 2}, lambda: True)
    assert bool(Verdict.true("a", derived)) is True
    assert bool(Verdict.false("a", refuted)) is False
    assert bool(Verdict.undecided("a", "nothing is known")) is False
    for status in ("true", "false"):
        with pytest.raises(ValueError, match="true or false with evidence"):
            Verdict(status, "a", "b")
    with pytest.raises(ValueError, match="undecided without"):
        Verdict("undecided", "a", "b", evidence=derived)
    with pytest.raises(ValueError, match="cannot make a claim true"):
        Verdict("true", "a", "b", evidence=refuted)


def test_a_counterexample_that_does_not_break_the_claim_cannot_be_made():
    with pytest.raises(ValueError, match="do not break"):
        Counterexample("2 = 2", {"a": 2}, lambda: False)
    with pytest.raises(ValueError, match="do not break"):
        Counterexample("unclear", {"a": 2}, lambda: None)


def test_what_does_not_stand_up_to_exact_evaluation_is_undecided(monkeypatch):
    def claimed(text):
        return Verdict.false(text, Counterexample("rounding", {"a": 1e-17}, lambda: False))

    monkeypatch.setitem(_decide.KINDS, "psd", claimed)
    assert _decide.decide("psd", "q·k").status == "undecided"


def test_no_module_makes_a_definite_verdict_but_by_its_evidence():
    """Every TRUE and FALSE is made by Verdict.true and Verdict.false, never by the bare class."""
    folder = Path(proofs.__file__).parent
    for file in folder.glob("*.py"):
        text = file.read_text(encoding="utf-8")
        assert file.name == "_verdict.py" or not re.search(r"\bVerdict\(", text), file.name
        assert file.name == "_verdict.py" or "object.__setattr__" not in text, file.name


def test_assumptions_stand_in_the_verdict():
    for kind, text, words in (
        ("identity", "q·k = k·q", "d is a whole number ≥ 1"),
        ("identity", "sqrt(a)**2 = a", "where both sides are defined"),
        ("moments", "E[x**4] = 3*Var[x]**2 where E[x] = 0", "the law of x is normal"),
        ("moments", "Var[q·k] = d where mu = 0, sigma = 1", "coordinates of q and k are independ"),
        ("cost", "softmax: O(n**2*d)", "D = d; M = d"),
        ("cost", "multi-query decoding: O(b*d**2 + b*n*d)", "k = d/h"),
        ("shapes", "A @ B -> n M where A: n m, B: m M", "sizes are whole numbers ≥ 1"),
        ("ranking", "relu beats elu", "says nothing about other data"),
        ("map", "[1, √2*x, x[i]**2, √2*x[i]*x[j] for i<j] gives (q·k + 1)**2", "for every i"),
    ):
        found = proofs.prove(kind, text, timeout=None)
        assert found, str(found)
        assert words in "; ".join(found.assumptions)
        assert "assumed: " in str(found)
    plain = proofs.prove("moments", "E[x*y] = E[x]*E[y]", timeout=None)
    assert "normal" not in "; ".join(plain.assumptions)


def test_verdict_as_json_holds_everything():
    found = proofs.check_feature_map("[x[i]*x[j] for i<=j]", "(q·k)**2", d=2)
    read = json.loads(found.to_json())
    assert read["status"] == "false"
    assert read["counterexample"] == {
        "q": [1, 2], "k": [3, 4], "φ(q)·φ(k)": 97, "kernel": 121,
    }  # fmt: skip
    assert proofs.Verdict.from_dict(read) == found
    assert "scale this feature by √2" in read["details"][0]


def test_verdict_text_stays_within_100_columns():
    found = proofs.check_feature_map("[x]", "(q·k + 1)**4", d=2)
    assert max(len(line) for line in str(found).splitlines()[1:]) <= 100


# The time limit


def test_what_takes_too_long_is_undecided():
    # No process can start within a hundredth of a second on any machine.
    found = proofs.prove("identity", "(a + b)**16 = 1", timeout=0.01)
    assert (found.status, found.basis) == ("undecided", "time limit")


def test_the_other_process_gives_the_same_answers(monkeypatch):
    for kind, text in (("einsum", "bd,dq->bhq"), ("map", "[x[i]*x[j] for i<=j] gives (q·k)**2")):
        assert proofs.prove(kind, text) == proofs.Verdict.from_dict(
            proofs.prove(kind, text, timeout=None).to_dict()
        )
    with pytest.raises(proofs.ClaimError) as caught:
        proofs.prove("identity", "q·k + = 1")
    assert caught.value.at == 6


def test_a_process_that_dies_leaves_the_claim_undecided(monkeypatch):
    monkeypatch.setattr(_prove.sys, "executable", "/bin/false")
    found = proofs.prove("einsum", "bd,dk->bk")
    assert found.status == "undecided"
    assert "failed" in found.reason


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf])
def test_time_limits_that_make_no_sense_are_refused(timeout):
    with pytest.raises(ValueError, match="timeout must be"):
        proofs.prove("einsum", "bd,dk->bk", timeout=timeout)


def test_unknown_kinds_are_refused_with_the_nearest():
    with pytest.raises(ValueError, match="did you mean 'cost'"):
        proofs.prove("costs", "x")
