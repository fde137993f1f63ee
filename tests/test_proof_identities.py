"""Identities, and numbers of features."""

import math

import pytest

sympy = pytest.importorskip("sympy")

from kerneltrick import proofs  # noqa: E402


def test_identities_of_functions():
    assert proofs.check_identity(lambda q, k: (q - k) @ (q - k), "norm2(q) + norm2(k) - 2*(q·k)")
    found = proofs.check_identity(lambda q, k: (q + k) @ (q + k), "norm2(q) + norm2(k)", d=1)
    assert found.counterexample == {"q": [1], "k": [2], "left": 9, "right": 5}


def test_identities_that_hold_only_sometimes_are_refuted():
    assert proofs.check_identity("abs(a) = a").status == "false"
    assert proofs.check_identity("abs(a) = a where a > 0")
    assert proofs.check_identity("max(a, b) = (a + b + abs(a - b))/2").status != "false"


def test_an_identity_that_cannot_be_simplified_is_not_called_true():
    found = proofs.check_identity("elu(a)*elu(b) = elu(b)*elu(a)")
    assert found.status in ("true", "undecided")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("d**2 = d", "false"),
        ("d = 1", "false"),
        ("C(d + 2, 2) = 3", "false"),
        ("(d - 1)*(d - 2)*(d - 3)*(q·k) = 0", "false"),
        ("(d - 1)*(d - 2)*(d - 3)*(q·k) = 0 where d <= 3", "true"),
        ("(d - 2)*(q·k) = 0 where d = 2", "true"),
        ("sqrt(a**2) = a where a > 0, a != 0", "true"),
        ("sqrt(a**2) = a where a != 0, a > 0", "true"),
        ("sqrt(a**2) = a where a != 0", "false"),
        ("q·k = 0 where q = 0", "true"),
        ("q·k = norm2(k) where q = k", "true"),
        ("q·k = 0 where q = k", "false"),
        ("abs(a - b) = b - a where a < b", "true"),
        ("a*b = a - a**2 where a + b = 1", "true"),
        ("a = 2 where a > 0, a < 0", "undecided"),  # nothing is claimed of no number at all
        ("a = 1 where a**2 = 2, a > 0", "undecided"),  # no fraction is √2
        ("a + 0.000000000001 = a", "false"),
        ("sum(i<j, q[i]*k[j]) + sum(j<i, q[i]*k[j]) + q·k = sum(q)*sum(k)", "true"),
        ("sum(i<j, q[i]*k[j]) = sum(j<i, q[i]*k[j])", "false"),
    ],
)
def test_conditions_and_dimensions_are_part_of_the_claim(text, status):
    assert proofs.check_identity(text).status == status


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a = 1 where a << 2", "a condition uses =, <, "),
        ("q·k = 1 where q = 1", "can only equal another vector or 0"),
        ("a = 1 where d = 0.5", "d must be a whole number"),
        ("a = 1 where a", "a condition has the form"),
    ],
)
def test_conditions_that_cannot_be_used_are_refused(text, says):
    with pytest.raises(proofs.ClaimError, match=says):
        proofs.check_identity(text)


def test_sums_run_over_the_indices_they_name():
    for d in (1, 2, 3):
        assert proofs.check_identity("sum(i, j, q[i]*k[j]) = sum(q)*sum(k)", d=d)
        assert proofs.check_identity(
            "sum(i<j, q[i]*q[j]) + sum(j<i, q[i]*q[j]) + norm2(q) = sum(q)**2", d=d
        )


@pytest.mark.parametrize("d", [1, 2, 3])
@pytest.mark.parametrize("degree", [1, 2, 3])
def test_no_map_has_fewer_features_than_the_rank(d, degree):
    least = math.comb(d + degree, degree)
    kernel = f"(q·k + 1)**{degree}"
    assert proofs.check_dimension(kernel, least, d, minimal=True)
    assert not proofs.check_dimension(kernel, least - 1, d, minimal=True)


def test_dimensions_are_polynomials_not_points():
    assert not proofs.check_dimension("poly:degree=2", "3 + 3*(d - 1)")  # right for d = 1 and 2
    assert proofs.check_dimension("[x[i]*x[j]*x[l] for i<=j<=l]", "C(d + 2, 3)")
