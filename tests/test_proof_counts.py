"""Costs, einsums, shapes, moments, gradients and rankings."""

import numpy as np
import pytest

import kerneltrick as kt

sympy = pytest.importorskip("sympy")

from kerneltrick import proofs  # noqa: E402


def test_an_upper_bound_may_be_loose_and_an_order_may_not():
    loose = proofs.check_cost("O(n**3*D*M)", "softmax")
    assert loose.status == "true"
    assert loose.reason.startswith("loose; O(n²·D + n²·M) is tight")
    assert proofs.check_cost("Theta(n**3*D*M)", "softmax").reason.startswith("too loose")
    for text in ("n**2*D + n**2*M", "n**2*D + n**2*M + n*D", "5*n**2*D + n**2*M/7"):
        for claim in (f"O({text})", f"Theta({text})", f"Θ({text})"):
            assert "loose" not in proofs.check_cost(claim, "softmax").reason


def test_the_counterexample_of_a_cost_separates_claim_and_count():
    for claim, algorithm in (
        ("O(n**2*D) where D <= M", "softmax"),
        ("O(n)", "softmax"),
        ("O(b*n*d)", "grouped decoding"),
    ):
        point = proofs.check_cost(claim, algorithm).counterexample
        assert point["count"] > 50 * point["claim"]
    point = proofs.check_cost("Theta(n**3)", "row softmax").counterexample
    assert point["claim"] > 50 * point["count"]


@pytest.mark.parametrize(
    ("claim", "status", "fixed"),
    [
        ("linear attention: O(n)", "true", "m and M are fixed"),
        ("softmax attention: O(n**2)", "true", "D and M are fixed"),
        ("softmax: O(n**2*D)", "true", "M is fixed"),
        ("softmax: O(n**2) where M = D", "true", "D is fixed"),
        ("linear memory: O(1)", "true", "m and M are fixed"),
        ("linear attention: O(n**2)", "true", "m and M are fixed"),
        ("linear attention: Theta(n**2)", "false", "m and M are fixed"),
        ("softmax attention: O(n)", "false", "D and M are fixed"),
        ("softmax: O(D + M)", "false", ""),  # the length always grows
        ("softmax: O(1)", "false", "D and M are fixed"),
        ("softmax: O(n**2*D) where D <= M", "false", ""),  # M is named, and so grows
        ("softmax: O(n**2*M) where M << D", "false", ""),
        ("grouped decoding traffic: O(n*g)", "false", "b is fixed"),  # g ≤ h ≤ d grow with g
        ("softmax: O(n**2*log(D) + n**2)", "false", "M is fixed"),
        ("softmax: Theta(n**2*D*log(D))", "false", "M is fixed"),
    ],
)
def test_sizes_that_a_cost_does_not_name_are_fixed_and_listed(claim, status, fixed):
    found = proofs.prove("cost", claim, timeout=None)
    assert found.status == status, str(found)
    assert fixed in found.assumptions or not fixed
    assert bool(fixed) == any("fixed" in x for x in found.assumptions)
    assert bool(fixed) == ("as well, it is O(" in str(found))


def test_a_size_that_is_fixed_does_not_cancel_a_term():
    m, n = kt.costs.symbols("m n")
    zero = kt.costs.Polynomial()
    cost = kt.costs.Cost("gaps", {"gaps": n**2 * (m - 1) + n}, zero, zero, zero)
    assert proofs.check_cost("O(n**2)", cost)
    assert not proofs.check_cost("O(n)", cost)


def test_an_unknown_algorithm_lists_the_known_ones():
    for text in ("foo: O(n)", "self-attention: O(n**2)", "softmax O(n)", "softmax speed: O(n)"):
        with pytest.raises(ValueError, match=r"known (algorithms )?are projections, softmax, .*"):
            proofs.prove("cost", text, timeout=None)
    assert proofs.prove("cost", "Linear Attention: O(n*m*M)", timeout=None)
    assert proofs.prove("cost", "linear attention:elu: O(n*D*M)", timeout=None)


def test_letters_that_are_no_size_are_pointed_at():
    with pytest.raises(proofs.ClaimError, match="no size z") as caught:
        proofs.check_cost("O(n*z)", "softmax")
    assert caught.value.at == 4
    with pytest.raises(ValueError, match="quantity must be"):
        proofs.check_cost("O(n)", "softmax", "speed")


def test_chunk_lengths_are_constants_until_they_are_named():
    assert proofs.check_cost("O(n*m*M)", "chunked")
    assert proofs.check_cost("O(n*C*m + n*C*M + n*m*M)", "chunked")
    assert not proofs.check_cost("Theta(n*C*m*M)", "chunked")


@pytest.mark.parametrize(
    "equation", ["bd,hdk->bhk", "bd,dk->bk", "bhk,bnk->bhn", "ij,jk->ik", "nf,nv->fv", "ij->ji"]
)
def test_accepted_einsums_run(equation):
    assert proofs.check_einsum(equation)
    inputs = equation.partition("->")[0].split(",")
    size = dict(zip("bdhknfvij", (2, 3, 4, 5, 2, 3, 4, 5, 2), strict=True))
    arrays = [np.ones([size[i] for i in letters]) for letters in inputs]
    shapes = [array.shape for array in arrays]
    assert np.einsum(equation, *arrays).shape
    assert proofs.check_einsum(equation, shapes)


def test_einsums_with_an_index_from_nowhere_do_not_run():
    assert not proofs.check_einsum("bd,dq->bhq")
    with pytest.raises(ValueError, match="h"):
        np.einsum("bd,dq->bhq", np.ones((2, 3)), np.ones((3, 4)))


def test_einsums_are_equal_up_to_the_names_of_indices():
    assert proofs.check_einsum("xy,yz->xz", meant="bd,dk->bk")
    swapped = proofs.check_einsum("yz,xy->xz", meant="bd,dk->bk")
    assert swapped.status == "false"
    assert "in any order" in swapped.details[0]
    assert proofs.check_einsum("yz,xy->xz", meant="bd,dk->bk", any_order=True)
    assert not proofs.check_einsum("xy,yz->zx", meant="bd,dk->bk")


def test_an_outer_product_is_right_and_described():
    assert "an outer product" in proofs.check_einsum("i,j->ij").reason
    assert "an outer product for every b" in proofs.check_einsum("bi,bj->bij").reason
    assert "entry by entry" in proofs.check_einsum("ij,ij->ij").reason
    found = proofs.check_einsum("bd,dq->bdq")  # shared, in the places of a matrix product, and kept
    assert found.status == "false"
    assert "meant to contract" in found.assumptions[0]


def test_sizes_of_one_fit_every_other_as_in_numpy():
    assert proofs.check_einsum("ij,jk->ik", [(2, 1), (3, 4)])
    assert np.einsum("ij,jk->ik", np.ones((2, 1)), np.ones((3, 4))).shape == (2, 4)
    assert not proofs.check_einsum("ij,jk->ik", [(2, 5), (3, 4)])
    assert not proofs.check_einsum("ij,jk->ik", [("n", "m"), ("k", "M")])
    assert proofs.check_einsum("ij,jk->ik", [("n", "m"), ("m", "M")])


def test_leading_axes_are_broadcast():
    for left, right, result, holds in (
        ("h n k", "h k m", "h n m", True),
        ("h n k", "g k m", "h n m", False),
        ("h n k", "1 k m", "h n m", True),
        ("1 n k", "g k m", "1 n m", False),
        ("n k", "g k m", "g n m", True),
        ("b h n k", "h k m", "b h n m", True),
        ("b h n k", "b k m", "b h n m", False),
    ):
        found = proofs.prove(
            "shapes", f"A @ B -> {result} where A: {left}, B: {right}", timeout=None
        )
        assert found.status == ("true" if holds else "false"), str(found)


def test_every_word_of_a_shape_claim_is_used_or_refused():
    for text, says in (
        ("A @ B -> n m where A: n k, B: k m, C: k m", "C has a shape but does not occur"),
        ("A @ A -> n n where A: n n, A: n m", "is given two shapes"),
        ("A.T @ B -> k m where A: h n k, B: n m", "write A.mT"),
        ("A @ B -> n m where A: n**0.5 k, B: k m", "whole exponents"),
    ):
        with pytest.raises(ValueError, match=says):
            proofs.prove("shapes", text, timeout=None)


def test_every_word_of_a_cost_claim_is_used_or_refused():
    for text, says in (
        ("softmax: O(n**2*D) where M = D, M = 3", "M is defined twice"),
        ("softmax: O(n**2*D) where M = D, D = M", "defined by itself"),
        ("softmax: O(n**2*D) where z << D", "no size z"),
        ("softmax: O(n**2*D) where M != D", "a condition has the form"),
        ("softmax: n**2*D + log(n)", "cannot contain a logarithm"),
    ):
        with pytest.raises(proofs.ClaimError, match=says):
            proofs.prove("cost", text, timeout=None)
    assert proofs.prove("cost", "softmax: O(N**2*D) where M << D, D << N", timeout=None)
    assert proofs.prove("cost", "softmax: O(n**2) where M = D, D = 3", timeout=None)


def test_a_logarithm_grows_less_than_any_power():
    assert proofs.check_cost("Theta(n*m*M + log(n)**2*m*M)", "linear")
    assert proofs.check_cost("Theta(n*m*M*log(n))", "linear").reason.startswith("too loose")


def test_what_is_not_counted_is_undecided():
    assert proofs.check_cost("O(n)", "row softmax", "traffic").status == "undecided"


def test_linear_attention_is_known_by_that_name():
    assert proofs.prove("cost", "linear attention: O(n*m*M)", timeout=None)
    assert proofs.prove("cost", "softmax attention memory: O(n**2)", timeout=None)
    assert proofs.prove("cost", "linear attention memory: O(m*M)", timeout=None)


def test_shapes_with_numbers_and_expressions():
    assert proofs.check_shapes("Q @ K.T", {"Q": (5, 3), "K": (7, 3)}, (5, 7))
    found = proofs.check_shapes("Q @ K", {"Q": (5, 3), "K": (7, 3)}, (5, 7))
    assert found.details == ("Q @ K.T fits: 5×7",)
    assert proofs.check_shapes("split(V, h, 2*k)", {"V": ("n", "h*2*k")}, ("h", "n", "2*k"))


def test_moments_agree_with_the_simulation_beside_them():
    for claim in ("E[q·k] = 0", "Var[q·k] = 0", "Var[x*y] = 0", "E[x**4] = 0", "Var[x**2] = 0"):
        found = proofs.check_moments(claim)
        z = float(found.details[0].rpartition("z = ")[2].rstrip(")"))
        assert abs(z) < 4, str(found)


@pytest.mark.parametrize(
    ("claim", "status"),
    [
        ("E[k] = 2 where E[q] = 2", "false"),
        ("Var[k] = 2 where Var[q] = 2", "false"),
        ("E[k**2] = E[q**2]", "false"),
        ("Var[q·k] = 0 where Var[q] = 0", "false"),
        ("E[q·k] = d*E[q]**2", "false"),
        ("E[q - k] = 0", "false"),
        ("E[q - k] = 0 where E[q] = E[k]", "true"),
        ("E[q - k] = 0 where mu = 3", "true"),
        ("Var[q - k] = 2*sigma**2", "true"),
        ("Var[k] = Var[q] where mu = 0", "false"),
        ("E[k] = E[q] where sigma = 1", "false"),
        ("E[q*k] = 6 where E[q] = 2, E[k] = 3", "true"),
        ("E[q·k] = 6*d where E[q] = 2, E[k] = 3", "true"),
        ("Var[q·k] = d*(sigma**4 + sigma**2*(mu_q**2 + mu_k**2))", "true"),
        ("E[x - y] = 0 where E[x] = E[y]", "true"),
        ("E[x - y] = 0", "false"),
    ],
)
def test_variables_share_a_law_only_if_the_claim_says_so(claim, status):
    assert proofs.check_moments(claim).status == status


def test_what_is_assumed_of_the_laws_is_printed():
    for claim, says in (
        ("E[q*k] = 6 where E[q] = 2, E[k] = 3", "q and k may have different laws"),
        ("Var[q·k] = d where mu = 0, sigma = 1", "the same mean mu and the same deviation sigma"),
        ("E[q·k] = d*mu**2", "q and k have the same mean mu"),
        ("E[q·k] = d*mu**2", "the coordinates of each vector have the same law"),
        ("Var[s*x] = s**2*Var[x]", "s is a constant"),
        ("E[x*q] = E[x]*E[q]", "q and x are independent"),
        ("E[x*(q·k)] = E[x]*E[q·k]", "x is independent of q and k"),
    ):
        found = proofs.check_moments(claim)
        assert found, str(found)
        assert says in "; ".join(found.assumptions)


def test_fourth_moments_are_those_of_a_normal_variable():
    assert proofs.check_moments("E[x**4] = 3*sigma_x**4 where mu_x = 0")
    assert proofs.check_moments("Var[x**2] = 2*sigma_x**4 where E[x] = 0")


def test_gradients_of_functions():
    def blurred(q, k, v):
        return kt.softmax_attention(q, k, np.ones_like(v)) + 0 * v

    def constant(q, k, v):
        return np.ones_like(v)

    assert not proofs.check_gradient(constant, "q")
    assert proofs.check_gradient(kt.softmax_attention, "q")
    assert proofs.check_gradient("hard", "v").facts["gradient"] == {
        "q": False, "k": False, "v": True,
    }  # fmt: skip
    found = proofs.check_gradient(blurred, "v")
    assert (found.status, found.basis) == ("undecided", "measurement")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("hard trains the unselected values", "false"),
        ("hard trains no key", "true"),
        ("hard trains no value", "false"),
        ("hard trains every value", "false"),
        ("hard trains no unselected value", "true"),
        ("softmax trains no value", "false"),
        ("softmax trains every key", "true"),
        ("elu trains every value", "true"),
        ("relu trains every value", "undecided"),
        ("relu trains v", "true"),
    ],
)
def test_every_word_of_a_claim_about_gradients_counts(text, status):
    assert proofs.prove("gradient", text, timeout=None).status == status


@pytest.mark.parametrize(
    "text", ["hard trains half the keys", "hard trains keys badly", "softmax trains the selected q"]
)
def test_words_about_gradients_that_are_not_known_are_refused(text):
    with pytest.raises(proofs.ClaimError):
        proofs.prove("gradient", text, timeout=None)


def test_moments_refuse_what_they_would_have_to_guess():
    for text, says in (
        ("E[q·k] = d*mu_q*mu_k where mu = 0", "mu belongs to both q and k, but mu_k to one"),
        ("E[k] = mu where E[q] = mu", r"mu already stands for E\[q\] and E\[k\]"),
        ("Var[k] = sigma**2 where 4 = Var[q]", "sigma already stands for"),
        ("E[x**2] = sigma**2 where mu = 0", "which do not occur"),
        ("Var[X*Y] = Var[X]*Var[Y]", "random are q, k, x, y, z"),
        ("E[x**2/x] = E[x]", "only for polynomials"),
        ("E[sqrt(x)**2] = E[x]", "only for polynomials"),
        ("E[(x**(1/2))**2] = E[x]", "only for polynomials"),
        ("E[x] = x", "x is random"),
        ("E[x**5] = 0 where E[x] = 0", "up to the fourth power"),
    ):
        with pytest.raises(proofs.ClaimError, match=says):
            proofs.check_moments(text)


def test_deviations_are_not_negative_and_factors_may_be():
    assert proofs.check_moments("sqrt(Var[s*x]) = s*sigma_x").status == "false"
    assert proofs.check_moments("sqrt(Var[s*x]) = s*sigma_x where s > 0")
    assert proofs.check_moments("sqrt(Var[x]) = sigma_x")


def test_rankings_of_equal_maps_are_undecided():
    assert proofs.check_ranking(["elu", "elu"]).status == "undecided"
