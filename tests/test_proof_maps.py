"""Feature maps against kernels."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import kerneltrick as kt

sympy = pytest.importorskip("sympy")

from kerneltrick import proofs  # noqa: E402
from kerneltrick.proofs import _own_maps  # noqa: E402
from kerneltrick.proofs._evaluate import FLOATS, Scope, scalar_value  # noqa: E402
from kerneltrick.proofs._symbolic import Phi  # noqa: E402
from kerneltrick.proofs._sympy import vector  # noqa: E402

ROOT_TWO = math.sqrt(2)


def numpy_quadratic(x):
    """1, √2·x and all products, in NumPy on rows (..., n, d)."""
    products = (x[..., :, None] * x[..., None, :]).reshape(*x.shape[:-1], -1)
    return np.concatenate([np.ones_like(x[..., :1]), np.sqrt(2) * x, products], axis=-1)


@pytest.mark.parametrize("d", range(1, 7))
@pytest.mark.parametrize(
    "text", ["poly:degree=2", "poly:degree=3,constant=0.3", "poly:degree=2,constant=0"]
)
def test_exact_maps_are_proven_in_every_dimension(text, d):
    found = proofs.check_feature_map(text, d=d)
    assert (found.status, found.basis) == ("true", "proof")
    assert found.facts["features"] == kt.maps.get(text).dim(d)


def test_functions_on_arrays_and_on_vectors_are_run_on_symbols():
    kernel = lambda q, k: (q @ k + 1) ** 2  # noqa: E731
    assert proofs.check_feature_map(numpy_quadratic, kernel, d=3).basis == "proof"
    vector = lambda x: [1, ROOT_TWO * x[0], ROOT_TWO * x[1], x[0] ** 2, x[1] ** 2, x[0] * x[1]]  # noqa: E731
    found = proofs.check_feature_map(vector, kernel, d=2)
    assert found.details == ("x₁·x₂: kernel has 2, φ·φ has 1 → scale this feature by √2",)


def test_rows_and_vectors_make_the_same_kernel():
    rows = lambda q, k: (q @ k.mT + 1) ** 2  # noqa: E731
    assert proofs.check_feature_map(numpy_quadratic, rows, d=2)


@pytest.mark.parametrize("drop", range(6))
def test_one_missing_feature_is_named(drop):
    features = ["1", "√2*x[1]", "√2*x[2]", "x[1]**2", "√2*x[1]*x[2]", "x[2]**2"]
    missing = ["√1·1", "√2·x₁", "√2·x₂", "x₁²", "√2·x₁·x₂", "x₂²"][drop]
    kept = ", ".join(f for i, f in enumerate(features) if i != drop)
    found = proofs.check_feature_map(f"[{kept}]", "(q·k + 1)**2", d=2)
    assert found.status == "false"
    assert len(found.details) == 1
    assert f"the feature {missing.replace('√1·', '')} is missing" in found.details[0]


@given(st.lists(st.sampled_from([1, 2, 3, 5]), min_size=6, max_size=6))
def test_a_mend_makes_the_map_exact(factors):
    """Applying every "scale this feature by" gives a map that is accepted."""
    monomials = ["1", "x[1]", "x[2]", "x[1]**2", "x[1]*x[2]", "x[2]**2"]
    names = ["1", "x₁", "x₂", "x₁²", "x₁·x₂", "x₂²"]
    features = [f"{f}*({m})" for f, m in zip(factors, monomials, strict=True)]
    found = proofs.check_feature_map(f"[{', '.join(features)}]", "(q·k + 1)**2", d=2)
    for line in found.details:
        name, _, factor = line.partition(":")[0], *line.rpartition(" by ")[1:]
        factor = factor.replace("·", "*").replace("√2", "sqrt(2)")
        at = names.index(name)
        features[at] = f"{factor}*{features[at]}"
    assert proofs.check_feature_map(f"[{', '.join(features)}]", "(q·k + 1)**2", d=2)


def test_a_counterexample_is_one():
    for kernel in ("(q·k + 1)**3", "(q·k)**2 + q·k", "q·k"):
        found = proofs.check_feature_map(numpy_quadratic, kernel, d=2)
        q, k = (np.array([found.counterexample[s]], dtype=float) for s in "qk")
        value = (numpy_quadratic(q) @ numpy_quadratic(k).T).item()
        assert value == pytest.approx(found.counterexample["φ(q)·φ(k)"])
        assert value != pytest.approx(found.counterexample["kernel"])


def test_a_tiny_error_in_a_coefficient_is_seen():
    wrong = 1.41421356  # √2 to nine digits
    phi = lambda x: [1, wrong * x[0], x[0] ** 2]  # noqa: E731
    assert not proofs.check_feature_map(phi, "(q·k + 1)**2", d=1)


def test_functions_that_compare_are_judged_by_numbers_and_say_so():
    relu = lambda x: np.where(x > 0, x, 0)  # noqa: E731
    found = proofs.check_feature_map(relu, "sum(i, relu(q[i])*relu(k[i]))", d=2)
    assert (found.status, found.basis) == ("undecided", "measurement")
    assert "not a proof" in found.reason
    found = proofs.check_feature_map(relu, "q·k", d=2)
    assert found.status == "false"
    assert found.counterexample["φ(q)·φ(k)"] != found.counterexample["kernel"]


def test_numpy_functions_run_on_symbols_where_there_is_one():
    phi = lambda x: np.concatenate([np.cos(x), np.sin(x)], axis=-1)  # noqa: E731
    found = proofs.check_feature_map(phi, "sum(i, cos(q[i] - k[i]))", d=2)
    assert (found.status, found.basis) == ("true", "proof")


def test_draws_of_a_function_show_its_bias_and_decide_nothing():
    def phi(x, seed, factor=1.0):
        w = np.random.default_rng(seed).standard_normal((x.shape[-1], 8))
        half = (x * x).sum(axis=-1, keepdims=True) / 2
        return factor * np.exp(x @ w - half) / math.sqrt(8)

    found = proofs.check_feature_map(phi, "exp(q·k)", d=2)
    assert (found.status, found.basis) == ("undecided", "measurement")
    assert "the mean is near the kernel" in found.reason
    biased = lambda x, seed: phi(x, seed, factor=1.03)  # noqa: E731
    found = proofs.check_feature_map(biased, "exp(q·k)", d=2)
    assert (found.status, found.basis) == ("undecided", "measurement")
    assert "the mean is not the kernel" in found.reason


def test_draws_that_contradict_the_theory_leave_the_claim_undecided(monkeypatch):
    from kerneltrick.proofs import _random

    right = _random._variance
    monkeypatch.setattr(_random, "_variance", lambda *a: 1.5 * right(*a))
    found = proofs.check_feature_map("favor:features=8,orthogonal=false", d=2)
    assert found.status == "undecided"
    assert "variance" in found.reason


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("[x]",), "a kernel is needed"),
        ((3, "q·k"), "a feature map is"),
        (("[x]", 3), "a kernel is"),
        (("[x]", "q·k", 0), "d must be from 1 to 12"),
        (("nothing", "q·k"), "unknown feature map"),
    ],
)
def test_wrong_arguments_are_explained(arguments, says):
    with pytest.raises((ValueError, TypeError), match=says):
        proofs.check_feature_map(*arguments)


@pytest.mark.parametrize(
    ("phi", "kernel"),
    [
        ("[1, √2*x, x[i]*x[j] for i, j]", "(q·k + 1)**2"),
        ("[x[i]*x[j]*x[l] for i, j, l]", "(q·k)**3"),
        ("[x[1]]", "q[1]*k[1]"),
        ("[x, 0*x[i]*x[j]*x[l] for i<j<l]", "q·k"),
        ("poly:degree=12", "(q·k + 1)**12"),
        ("poly:degree=2,constant=100000", "(q·k + 100000)**2"),
        ("relu", "sum(i, relu(q[i])*relu(k[i]))"),
        ("[sqrt(d)*x]", "d*(q·k)"),
    ],
)
def test_maps_are_proven_in_every_dimension_at_once(phi, kernel):
    found = proofs.check_feature_map(phi, kernel)
    assert (found.status, found.basis) == ("true", "proof")
    assert "every d" in found.reason


@pytest.mark.parametrize("zeros", range(1, 9))
def test_polynomials_in_d_that_vanish_in_small_dimensions_are_refuted_beyond(zeros):
    factor = "*".join(f"(d - {i + 1})" for i in range(zeros))
    found = proofs.check_feature_map("[x]", f"q·k + {factor}")
    assert found.status == "false"
    assert len(found.counterexample["q"]) == zeros + 1
    counted = factor.replace("d", "sum(i, 1)")
    assert proofs.check_feature_map("[x]", f"q·k + {counted}").status == "false"


@pytest.mark.parametrize(
    "text",
    [
        *kt.maps.names(),
        "poly:degree=3,constant=0.3",
        "hedgehog:separate=true",
        "hedgehog:activation=exp",
    ],
)
def test_the_exact_forms_of_maps_are_what_they_compute(text):
    """The proofs define our maps by formulas; this compares the formulas with the code."""
    text = {"cosformer": "cosformer:horizon=9"}.get(text, text)
    feature_map = kt.maps.get(text)
    x = np.random.default_rng(0).standard_normal((5, 3))
    features = _own_maps.own_features(feature_map)
    if features is not None:
        phi = proofs_phi("[1]", features)
        np.testing.assert_allclose(phi.numeric(x), np.asarray(feature_map.phi(x)), atol=1e-12)
    known = _own_maps.own_kernel(feature_map)
    if known is not None and feature_map.exact:
        scope = Scope("", {"q": list(x.T), "k": list(x[::-1].T)}, float, FLOATS, float)
        found = scalar_value(known[0], scope)
        wanted = (np.asarray(feature_map.phi(x)) * np.asarray(feature_map.phi(x[::-1]))).sum(-1)
        np.testing.assert_allclose(found, wanted, rtol=1e-12)
    listed = _own_maps.monomial_features(feature_map, vector("x", 2))
    if listed is not None:
        assert len(listed) == feature_map.dim(2)
    assert (
        features is not None
        or known is not None
        or text in ("cosformer:horizon=9", "focused", "t2r")
    )


def test_softmax_has_no_features_and_the_kernel_that_it_stands_for():
    assert proofs.check_feature_map("softmax", "exp(q·k)")
    assert not proofs.check_feature_map("softmax", "q·k")
    assert proofs.check_sign("softmax", ">")
    assert proofs.check_psd("softmax")


def proofs_phi(text, node):
    found = Phi(text)
    found.node = node
    return found


def test_a_feature_with_one_index_is_for_every_one_of_them():
    short = "[1, √2*x, x[i]**2, √2*x[i]*x[j] for i<j]"
    assert proofs.check_feature_map(short, "(q·k + 1)**2")
    with pytest.raises(proofs.ClaimError, match=r"add 'for i<=j', 'for i<j' or 'for i, j'"):
        proofs.check_feature_map("[1, x[i]*x[j]]", "(q·k + 1)**2")
    for dots in ("…", "..."):
        with pytest.raises(proofs.ClaimError, match="write the features in place of …"):
            proofs.check_feature_map(f"[1, √2*x, x[i]**2, {dots}]", "(q·k + 1)**2")


def test_letters_that_are_to_be_chosen_have_a_choice_that_is_put_in_or_equations_without_a_root():
    kernel = "(q·k + 1)**2"
    found = proofs.check_feature_map("[1, a*x, b*x[i]*x[j] for i, j]", kernel, some=["a", "b"])
    assert "with a = -√2, b = -1" in found.reason
    assert "every d" in found.reason
    found = proofs.check_feature_map("[a*x]", "-(q·k)", some=["a"])
    assert (found.status, found.basis) == ("false", "proof")
    assert not proofs.check_feature_map("[a, a*x]", "1 + 2*(q·k)", some=["a"])
    with pytest.raises(ValueError, match="does not occur"):
        proofs.check_feature_map("[x]", "q·k", some=["a"])


def test_features_are_of_x_and_kernels_of_q_and_k():
    with pytest.raises(proofs.ClaimError, match="functions of x"):
        proofs.check_feature_map("[q]", "q·k")
    with pytest.raises(proofs.ClaimError, match="not of x"):
        proofs.check_feature_map("[x]", "x·k")
