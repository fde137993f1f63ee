"""Positive semi-definite kernels, and signs of similarities."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

sympy = pytest.importorskip("sympy")

from kerneltrick import proofs  # noqa: E402
from kerneltrick.proofs import _interval, _psd_form, _syntax  # noqa: E402


def test_the_points_that_break_a_kernel_have_that_eigenvalue():
    for text, kernel in {
        "elu(q·k) + 1": lambda t: np.where(t > 0, t + 1, np.exp(np.minimum(t, 0))),
        "tanh(q·k)": np.tanh,
        "relu(q·k)": lambda t: np.maximum(t, 0),
    }.items():
        found = proofs.check_psd(text)
        points = np.array(found.counterexample["points"])
        lowest = np.linalg.eigvalsh(kernel(points @ points.T))[0]
        assert found.counterexample["eigenvalue"] == pytest.approx(lowest)
        assert lowest < 0


def test_the_kernel_of_the_lecture_breaks_at_small_whole_points():
    found = proofs.check_psd("elu(q·k) + 1")
    assert sorted(found.counterexample["points"]) == [[-2.0], [-1.0], [1.0], [2.0]]
    assert found.counterexample["eigenvalue"] == pytest.approx(-0.0114, abs=5e-5)


@pytest.mark.parametrize("scale", [-2, -1, -0.25, 0, 0.25, 1])
def test_the_constant_of_a_quadratic_decides(scale):
    assert proofs.check_psd(
        f"(q·k + {scale})**2" if scale >= 0 else f"(q·k - {-scale})**2"
    ).status == ("true" if scale >= 0 else "false")


@pytest.mark.parametrize(
    ("kernel", "status"),
    [
        ("(q·k + 1000)**2 - 2000*(q·k) - 1000000", "true"),
        ("(q·k + 100000)**2 - 200000*(q·k) - 10000000000.001", "false"),
        ("(d - 1)*(d - 2)*(d - 3)*(q·k)", "true"),
        ("-(d - 1)*(d - 2)*(d - 3)*(q·k)", "false"),
        ("0.000000000001*(q·k) - 0.0000000000001*(q·k)", "true"),
        ("sum(i<j, q[i]*q[j]*k[i]*k[j])", "true"),
        ("q·k/d", "true"),
    ],
)
def test_rounding_decides_no_kernel(kernel, status):
    assert proofs.check_psd(kernel).status == status


def test_the_weights_of_a_counterexample_make_the_gram_matrix_negative():
    for text in ("elu(q·k) + 1", "tanh(q·k)", "(q·k)**2 - 0.5"):
        found = proofs.check_psd(text).counterexample
        points = np.array(found["points"])
        weights = np.array([float(Fraction(w)) for w in found["w"]])
        t = points @ points.T
        gram = {"elu(q·k) + 1": np.where(t > 0, t + 1, np.exp(np.minimum(t, 0))),
                "tanh(q·k)": np.tanh(t), "(q·k)**2 - 0.5": t**2 - 0.5}[text]  # fmt: skip
        assert weights @ gram @ weights < 0


@pytest.mark.parametrize("seed", range(30))
def test_elimination_in_fractions_agrees_with_eigenvalues(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 6))
    root = rng.integers(-3, 4, (n, int(rng.integers(1, n + 1))))
    gram = root @ root.T
    rows = [[Fraction(int(x)) for x in row] for row in gram]
    assert _psd_form.is_psd(rows)
    gram[0, 0] -= 1
    lowest = np.linalg.eigvalsh(gram.astype(float))[0]
    rows[0][0] -= 1
    assert _psd_form.is_psd(rows) == bool(lowest > -1e-9)


def test_functions_are_never_proven():
    found = proofs.check_psd(lambda q, k: math.exp(-np.abs(q - k).sum()))
    assert found.status == "undecided"
    assert proofs.check_psd(lambda q, k: -(q @ k)).status == "false"


# Signs


SIMILARITIES = {
    "1 + t + t**2/2": lambda t: 1 + t + t**2 / 2,
    "1 + t + t**2/4": lambda t: 1 + t + t**2 / 4,
    "1 + t + t**2/5": lambda t: 1 + t + t**2 / 5,
    "exp(t)": np.exp,
    "relu(t)": lambda t: np.maximum(t, 0),
    "elu(t) + 1": lambda t: np.where(t > 0, t + 1, np.exp(np.minimum(t, 0))),
    "t": lambda t: t,
    "-t**2": lambda t: -(t**2),
    "-1 - t**2": lambda t: -1 - t**2,
    "cos(t) + 1.5": lambda t: np.cos(t) + 1.5,
    "cos(t) + 0.5": lambda t: np.cos(t) + 0.5,
}


@pytest.mark.parametrize("relation", [">", ">=", "<", "<=", "!="])
@pytest.mark.parametrize("text", SIMILARITIES)
def test_signs_are_those_of_a_dense_grid(text, relation):
    values = SIMILARITIES[text](np.linspace(-12, 12, 4801))
    truth = {
        ">": (values > 0).all(),
        ">=": (values >= 0).all(),
        "<": (values < 0).all(),
        "<=": (values <= 0).all(),
        "!=": (values > 0).all() or (values < 0).all(),
    }[relation]
    found = proofs.check_sign(text.replace("t", "(q·k)"), relation)
    assert found.status == ("true" if truth else "false"), str(found)


def test_a_witness_of_a_vanishing_sum_sums_to_zero():
    for text in ("q·k", "relu(q·k)", "1 + (q·k)**2 - 3*(q·k)", "cosine(q, k)"):
        found = proofs.check_sign(text)
        assert found.status == "false"
        total = found.counterexample.get("sum", found.counterexample.get("sim"))
        assert total == 0, str(found)


def test_underflow_is_not_a_zero():
    assert proofs.check_sign("exp(-1000*norm2(q)) > 0")
    assert proofs.check_sign("exp(-1000*norm2(q)) - exp(-1001*norm2(q)) > 0").status == "false"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("sum(i<j, 1) > 0", "false"),
        ("sum(i<j, 1) > 0 where d >= 2", "true"),
        ("sum(i<=j, 1) > 0", "true"),
        ("exp(1) - 2.7182818284590 > 0", "true"),
        ("exp(1) - 2.7182818284591 > 0", "false"),
        ("((q·k)**2 - 2)**2 > 0", "false"),  # 0 where no fraction is
        ("norm2(q) + norm2(k) - 2*(q·k) >= 0", "true"),
        ("(a - 1)**2/(1 + a**2) >= 0", "true"),
        ("1/a > 0", "false"),
        ("a - 5 > 0 where a > 5", "true"),
        ("a - 5 > 0 where a >= 5", "false"),
    ],
)
def test_signs_are_exact(text, status):
    assert proofs.check_sign(text).status == status


def test_rounding_is_not_a_sign():
    assert proofs.check_sign("0.1 + 0.2 - 0.3 > 0").status == "false"
    assert proofs.check_sign("relu(q·k) + 0.1 + 0.2 - 0.3 > 0").status == "false"
    assert proofs.check_sign("exp(q·k) + 0.1 + 0.2 - 0.3 > 0").status == "true"


def test_maps_declare_the_sign_that_is_found():
    for text, relation in (("elu", ">"), ("relu", ">="), ("square", ">="), ("taylor:order=2", ">")):
        assert proofs.check_sign(text, relation)
    for text in (
        "identity",
        "relu",
        "poly:degree=2",
        "taylor:order=3",
        "favor:features=8,kind=trig",
    ):
        assert not proofs.check_sign(text, ">")


@given(st.data())
def test_intervals_hold_every_value(data):
    """For random expressions and points, the value lies in the claimed interval."""
    unary = ["exp({})", "relu({})", "elu({})", "cos({})", "tanh({})", "abs({})", "({})**2", "-({})"]
    binary = ["({}) + ({})", "({}) - ({})", "({})*({})", "max({}, {})", "min({}, {})"]

    def build(depth):
        if depth == 0:
            return data.draw(st.sampled_from(["a", "b", "2", "0.5", "0"]))
        if data.draw(st.booleans()):
            return data.draw(st.sampled_from(unary)).format(build(depth - 1))
        return data.draw(st.sampled_from(binary)).format(build(depth - 1), build(depth - 1))

    text = build(3)
    node = _syntax.read_expression(text)
    found = _interval.interval(node, {"b": _interval.POSITIVE})
    from kerneltrick.proofs._evaluate import FLOATS, Scope, scalar_value

    values = {"a": data.draw(st.floats(-3, 3)), "b": data.draw(st.floats(0.01, 3))}
    scope = Scope(text, {}, values.__getitem__, FLOATS, float)
    with np.errstate(all="ignore"):
        value = float(scalar_value(node, scope))
    if math.isfinite(value):
        slack = 1e-9 * (1 + abs(value))
        assert float(found.low) - slack <= value <= float(found.high) + slack
        if found.positive:
            assert value > -slack
        if found.negative:
            assert value < slack
