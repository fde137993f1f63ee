"""Adversarial claims, one table per mechanism that once gave a wrong verdict."""

import numpy as np
import pytest

pytest.importorskip("sympy")

from kerneltrick import proofs

LARGE = "*".join(["10**16"] * 19)  # near the largest float


def status(kind, claim):
    return proofs.prove(kind, claim, timeout=None).status


@pytest.mark.parametrize(
    ("kind", "claim"),
    [
        ("identity", "abs(b) = b where a = sqrt(b)"),
        ("identity", "abs(b) = b where a = log(b)"),
        ("identity", "relu(b) = b where sqrt(b) = a"),
        ("identity", "q·k = norm2(x) where q = k, k = x"),
        ("identity", "norm2(q) = norm2(y) where q = k, k = x, x = w, w = y"),
        ("identity", "norm2(q) = norm2(y) where w = y, x = w, k = x, q = k"),
        ("sign", "b > 0 where a = log(b)"),
        ("sign", "b >= 0 where a = sqrt(b)"),
    ],
)
def test_a_condition_that_explains_a_letter_must_have_a_value_too(kind, claim):
    assert status(kind, claim) != "false"


def test_explained_vectors_are_known_before_what_they_explain():
    assert status("identity", "q·k = norm2(x) where q = 2*k, k = x") == "false"
    assert status("identity", "q·k = 0 where q = k/b") == "false"


@pytest.mark.parametrize(
    ("kind", "claim"),
    [
        ("identity", "0**(-1/2) = 0"),
        ("identity", "sqrt(-1)*sqrt(-1) = -1"),
        ("identity", "log(-1) = log(-1)"),
        ("identity", "exp(log(0)) = 0"),
        ("identity", "sqrt(-1 - a**2)**2 = -1 - a**2"),
        ("identity", "a = a where a > 2, a < 1"),
        ("map", "[sqrt(-1)*x] gives -(q·k)"),
        ("map", "[√(-2)*x] gives -2*(q·k) for d = 2"),
        ("psd", "sqrt(-1 - q[1]**2)*sqrt(-1 - k[1]**2)"),
        ("sign", "a > 0 where a > 2, a < 1"),
        ("sign", "sqrt(-1) >= 0"),
        ("sign", "1/c >= 0 where c < 0, c > 1"),
        ("sign", "1/c > 0 where c > 0, c <= 0"),
        ("sign", "c**-3 + 1 > 0 where c < -1, c >= -1"),
        ("sign", "c > 0 where c = 1, 1 = 2"),
        ("psd", "d/0"),
        ("psd", "0**-1"),
        ("psd", "q·k/(d - d)"),
        ("moments", "Var[x] = -1 where Var[x] = -1"),
        ("moments", "Var[x] = 1 where sigma_x = -1"),
    ],
)
def test_what_is_defined_nowhere_or_asks_the_impossible_is_undecided(kind, claim):
    verdict = proofs.prove(kind, claim, timeout=None)
    assert verdict.status == "undecided"
    assert "no values were found that meet all conditions" in verdict.reason


@pytest.mark.parametrize(
    ("kind", "claim"),
    [
        ("psd", "sinh(min(q[1]**2, k[1]**2)*norm2(q+k))"),
        ("psd", f"{LARGE}*(q·k)*cos(q·k)"),
        ("moments", "E[x] = 1 where E[x] = 1/0"),
        ("moments", f"E[x**2] = 2*E[x**2] where E[x] = {LARGE}*{LARGE}"),
    ],
)
def test_numbers_beyond_the_floats_do_not_end_the_search(kind, claim):
    assert status(kind, claim) in ("false", "undecided")


def test_a_kernel_as_a_function_may_return_numbers_near_the_largest_float():
    for size, holds in ((1e308, False), (1e-308, False), (1.0, False)):
        found = proofs.check_psd(lambda q, k, size=size: size * np.tanh(q @ k))
        assert (found.status == "true") is holds
        assert found.status == "false", size


@pytest.mark.parametrize(
    "claim",
    ["E[q·q] = mu**2 + sigma**2", "E[q·q] = d*(mu**2 + sigma**2)", "E[(q + k)·k] = 2*mu**2"],
)
def test_moments_of_other_dot_products_are_refused(claim):
    with pytest.raises(proofs.ClaimError, match=r"q·k is the only dot product known"):
        status("moments", claim)


def test_every_deviation_of_a_claim_is_at_least_0():
    assert status("moments", "E[x] = E[x] + abs(sigma_y) - sigma_y") == "true"
    assert status("moments", "E[x] = E[x] + abs(mu_y) - mu_y") == "false"
    assert status("moments", "E[(q·k)·(q·k)] = d*sigma**4 where mu = 0") == "true"


@pytest.mark.parametrize(
    ("kind", "claim", "match"),
    [
        ("identity", "a²³ = a**6", "two digits"),
        ("map", "[x²²] gives sum(i, q[i]**4*k[i]**4)", "two digits"),
        ("identity", "√a² = a", "power of a root"),
        ("identity", "√a**2 = a", "power of a root"),
        ("identity", "sum(i<j, foo(q[i])) = 0 where d = 1", "unknown function"),
        ("identity", "sum(i<j, sum(l<r, foo(q[i]))) = 0 where d = 2", "unknown function"),
        ("map", "[foo(x[i]) for i<j] gives 0 for d = 1", "unknown function"),
        ("map", "[1, x] gives identity + 1", "feature map"),
        ("identity", "softmax = 1", "feature map"),
        ("identity", "q[100000000] = q[100000000]", "from 1 to 1000"),
        ("dimension", "[bogus(x)] has d features", "unknown function"),
        ("dimension", "[max(x, 0)] has d features", "numbers, not vectors"),
        ("dimension", "[x*x] has d features", "vectors cannot be multiplied"),
        ("dimension", "[x/x] has d features", "divide by a vector"),
        ("dimension", "[norm(3)] has 1 features", "takes vectors"),
        ("dimension", "[q] has 1 features", "functions of x"),
        ("dimension", "[w·x] has d features", "functions of x"),
        ("sign", "[q] >= 0", "functions of x"),
    ],
)
def test_every_word_of_an_expression_is_read_or_refused(kind, claim, match):
    with pytest.raises(proofs.ClaimError, match=match):
        status(kind, claim)


def test_powers_and_roots_that_are_clear_are_read():
    assert status("identity", "(√a)² = a where a > 0") == "true"
    assert status("identity", "√(a²) = a") == "false"
    assert status("identity", "q[1000] = q[1000]") == "true"


def test_softmax_has_no_finite_number_of_features():
    assert status("dimension", "softmax has 0 features") == "false"
    assert status("dimension", "[x[i]*x[j]*x[l] for i<j<=l] has C(d+1, 3) features") == "undecided"
    assert status("dimension", "[x[i]*x[j]*x[l] for i<j<=l] has C(d, 3) features") == "false"


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("[a*x] gives pi*(q·k) for some a", "true"),
        ("[a*x] gives pi*(q·k) for some a for d = 2", "true"),
        ("[exp(a*x[i]) for i] gives sum(i, exp(q[i] + k[i])) for some a", "undecided"),  # a = 1
        ("[a*x] gives b**2*(q·k) for some a", "undecided"),  # a = b, if it may depend on b
        ("[a*x] gives d*(q·k) for some a", "undecided"),  # a = √d, if it may depend on d
        ("[a*x] gives (d - 2)*(q·k) for some a", "false"),  # none for d = 1
        ("[a*x[i]*x[j] for i<=j] gives (q·k)**2 for some a", "false"),
    ],
)
def test_there_is_no_choice_only_if_none_is_missed(claim, expected):
    assert status("map", claim) == expected


@pytest.mark.parametrize(
    "claim",
    [
        "(q·k)**3 != 0 where q·k > 0",
        "sinh(q·k) != 0 where q·k > 0",
        "tanh(q·k) != 0 where q·k >= 1",
    ],
)
def test_keys_that_cancel_meet_all_conditions(claim):
    assert status("sign", claim) != "false"
    assert status("sign", claim.replace(" != 0", "") + " can vanish") != "true"


@pytest.mark.parametrize(
    ("kind", "claim", "expected"),
    [
        ("sign", "exp(-1000000) > 0", "true"),
        ("sign", "exp(-1000000) < 0", "false"),
        ("sign", "exp(1000000) <= 0", "false"),
        ("identity", "*".join(["(a**16)**4"] * 12) + " = b", "false"),
    ],
)
def test_numbers_of_thousands_of_digits_are_no_error(kind, claim, expected):
    verdict = proofs.prove(kind, claim, timeout=None)
    assert verdict.status == expected
    assert str(verdict)
    assert verdict.to_json()


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("multi-head decoding: O(b*n*d) where h = 1, k <= n", "true"),
        ("multi-query decoding traffic: O(d**2 + b*d + b*n*d) where h = 1", "true"),
        ("multi-head decoding: 2*b*n*d + 4*b*d**2 where h = d", "true"),
        ("multi-head decoding: 2*b*n*h*k + 4*b*h*d*k where v = k", "true"),
        ("multi-head decoding: 2*b*n*h*k + 4*b*h**2*k**2 where d = h*k", "true"),
        ("grouped decoding memory: O(b*n*d) where h = 1", "true"),  # g ≤ h
        ("grouped decoding memory: 2*w*b*n*d where h = 1", "undecided"),
        ("multi-query decoding traffic: O(b*n) where d = 64", "true"),  # h ≤ d
        ("softmax: O(n**2) where D = 64, M <= D", "true"),
        ("softmax: O(n**2) where D = 64, M >= D", "false"),
        ("softmax: O(n**2*D) where M = D, M <= n", "true"),
    ],
)
def test_sizes_that_are_explained_keep_their_relations(claim, expected):
    assert status("cost", claim) == expected


@pytest.mark.parametrize(
    "claim",
    [
        "softmax: n**2*D where M = 0",
        "softmax: n**2*D - n**2 where M = -1",
        "softmax: n**2*D + n**2/2 where M = 0.5",
        "multi-head decoding: O(b*n*d) where k <= n",
        "multi-head decoding: O(b*n*d) where h = d + 1",
    ],
)
def test_conditions_on_sizes_are_used_or_refused(claim):
    with pytest.raises(proofs.ClaimError):
        status("cost", claim)


def test_a_counterexample_to_a_count_has_whole_sizes():
    verdict = proofs.prove("cost", "multi-head decoding: 2*b*n*d + 4*b*d**2 + h - 1", timeout=None)
    assert verdict.status == "false"
    assert verdict.counterexample["d"] % verdict.counterexample["h"] == 0


@pytest.mark.parametrize(
    ("kind", "claim", "expected"),
    [
        ("einsum", "ii->i for 1 3", "false"),
        ("einsum", "ii->i for n 1", "false"),
        ("einsum", "iij->j for 1 2 3", "false"),
        ("einsum", "ii->i for n n", "true"),
        ("einsum", "ij,jk->ik for 2 1, 4 5", "true"),  # NumPy and torch broadcast between operands
        ("einsum", "ij,jk->ik for (2, 3), (3, 5)", "true"),
        ("einsum", "ij,jk->ik for (2, 3), (4, 5)", "false"),
        ("einsum", "i,i-> computes i,j->", "false"),
        ("einsum", "ij,ij-> computes ij,ji->", "false"),
        ("einsum", "ij,ij-> computes ji,ji->", "true"),
        ("shapes", "Qᵀ @ K -> d m where Q: n d, K: n m", "true"),
        ("shapes", "v.T @ A -> k where v: n, A: n k", "true"),
    ],
)
def test_shapes_are_those_of_numpy(kind, claim, expected):
    assert status(kind, claim) == expected


@pytest.mark.parametrize(
    ("kind", "claim"),
    [
        ("einsum", "ij,jk->ik computes ab,bc->aa"),
        ("einsum", "ij,jk->ik for (2, 3, (3, 5)"),
        ("shapes", "A @ v.mT -> n where A: n k, v: k"),
        ("shapes", "A @ B -> n m where A: n 1.5, B: 1.5 m"),
        ("shapes", "A @ B -> n m where A: n k-k, B: k-k m"),
        ("shapes", "A @ B -> n m where A: n -3, B: -3 m"),
        ("shapes", "split(X, 0, k) -> 0 n k where X: n k"),
    ],
)
def test_shapes_that_no_array_has_are_refused(kind, claim):
    with pytest.raises(proofs.ClaimError):
        status(kind, claim)


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("favor:features=1 trains q", "false"),  # o = Σφ(kⱼ)vⱼ / Σφ(kⱼ)
        ("favor:features=1 trains no q", "true"),
        ("favor:features=1 trains k", "true"),
        ("favor:features=2 trains q", "true"),
        ("relu trains every query", "undecided"),  # not those with negative coordinates only
        ("relu2 trains every q", "undecided"),
        ("focused:power=3 trains every q", "undecided"),
        ("t2r trains every query", "undecided"),
        ("relu trains no query", "false"),
        ("elu trains every query", "true"),
    ],
)
def test_features_that_cancel_or_are_flat_train_no_query(claim, expected):
    assert status("gradient", claim) == expected


def test_one_feature_alone_gives_queries_no_gradient():
    import numpy as np

    import kerneltrick as kt

    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 5, 4))
    one = kt.maps.get("favor:features=1")
    np.testing.assert_allclose(
        kt.linear_attention(q, k, v, one), kt.linear_attention(2 * q + 1, k, v, one)
    )


@pytest.mark.parametrize(
    ("claim", "expected"),
    [
        ("softmax beats elu", "true"),
        ("elu beats softmax", "false"),
        ("poly:degree=2,constant=1e300 beats elu", "undecided"),
        ("elu beats poly:degree=2,constant=1e300", "undecided"),
        ("favor:features=16 beats favor:features=16", "undecided"),
    ],
)
def test_weights_that_are_no_numbers_are_ranked_nowhere(claim, expected):
    assert status("ranking", claim) == expected


def test_a_seed_that_is_named_is_used():
    facts = proofs.check_ranking(
        ["favor:features=16,seed=5", "favor:features=16,seed=6", "favor:features=16"]
    ).facts
    assert len(set(facts.values())) == 3
