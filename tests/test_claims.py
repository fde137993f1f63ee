"""The table of claims: wrong ones are refuted for the right reason, right ones are accepted."""

import functools
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("sympy")

from kerneltrick import proofs

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))

import make_claims  # noqa: E402


@functools.cache
def verdict(kind, text):
    return proofs.prove(kind, text, timeout=None)


def plain(found):
    """Return the text without its line breaks."""
    return re.sub(r"\s+", " ", str(found))


@pytest.mark.parametrize("claim", proofs.CLAIMS, ids=lambda c: f"{c.kind}: {c.text}")
def test_claim_is_decided_for_the_right_reason(claim):
    found = verdict(claim.kind, claim.text)
    assert found.status == ("true" if claim.holds else "false"), str(found)
    assert claim.because in plain(found)
    assert bool(found) is claim.holds
    assert found.reason
    if not claim.holds:  # a refutation says more than "no"
        assert (
            found.counterexample
            or found.details
            or found.basis == "measurement"
            or (len(found.reason) > 20)
        )


def test_every_statement_of_the_specification_is_here():
    numbers = {statement.number for statement in proofs.STATEMENTS}
    assert numbers == {*range(1, 25), 26}
    assert set(proofs.PROSE) == {25, 27, 28, 29, 30}


def test_every_statement_is_refuted_and_its_corrected_form_accepted():
    for statement in proofs.STATEMENTS:
        kinds = {claim.holds for claim in statement.claims}
        assert kinds == {True, False}, statement.number
        assert all(claim.because for claim in statement.claims if not claim.holds)


def test_there_are_at_least_thirty_further_claims_right_and_wrong():
    right = [claim for claim in proofs.FURTHER if claim.holds]
    wrong = [claim for claim in proofs.FURTHER if not claim.holds]
    assert len(right) >= 30
    assert len(wrong) >= 25
    assert len({(c.kind, c.text) for c in proofs.CLAIMS}) == len(proofs.CLAIMS)


def test_every_kind_of_claim_is_in_the_table():
    assert {claim.kind for claim in proofs.CLAIMS} == set(proofs.KINDS)


def test_the_page_of_wrong_claims_is_current():
    page = (ROOT / "docs/wrong_claims.md").read_text(encoding="utf-8")
    assert page == make_claims.page(verdict), "run make claims"


@pytest.mark.parametrize("kind", proofs.KINDS)
def test_the_example_of_each_kind_is_decided(kind):
    assert verdict(kind, proofs.EXAMPLES[kind]).status in ("true", "false")
