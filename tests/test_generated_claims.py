"""No generated claim gets a wrong verdict, and nine of ten are decided."""

import pytest

pytest.importorskip("sympy")

import generated_claims as made

FEW = {"ranking": 20, "psd": 90, "cost": 50}
MANY = {"ranking": 300, "gradient": 2000, "cost": 2000}


@pytest.mark.parametrize("kind", made.KINDS)
def test_no_generated_claim_gets_a_wrong_verdict(kind):
    found = made.tally(kind, FEW.get(kind, 75))
    assert not found.wrong
    assert found.decided >= 0.9 * found.generated, found.undecided


@pytest.mark.slow
@pytest.mark.parametrize("kind", made.KINDS)
def test_no_claim_of_thousands_gets_a_wrong_verdict(kind):
    found = made.tally(kind, MANY.get(kind, 3000), seed=1)
    assert not found.wrong
    assert found.decided >= 0.9 * found.generated, found.undecided[:20]


@pytest.mark.parametrize("kind", made.KINDS)
def test_right_and_wrong_claims_are_generated(kind):
    claims = made.generate(kind, 60)
    assert 10 <= sum(claim.holds for claim in claims) <= 50


def test_the_oracle_tells_right_from_wrong():
    import random

    rng = random.Random(0)
    assert not made.differ("(a + b)**2", "a**2 + 2*a*b + b**2", rng)
    assert made.differ("(a + b)**2", "a**2 + b**2", rng)
    assert made.differ("0", "(d - 1)*(d - 2)*(d - 3)*(d - 4)", rng)
    assert not made.differ("sum(i<j, q[i]*q[j])", "(sum(q)**2 - norm2(q))/2", rng)
    assert made.value("√2*√8 + q[2] + sum(i<=j, 1)", 3, {"q": [1, 5, 2]}) == 15
