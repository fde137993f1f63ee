"""What maps declare about themselves is what they compute."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

import kerneltrick as kt
from kerneltrick import costs, maps

TEXTS = [
    "cosformer:horizon=9" if name == "cosformer" else name for name in maps.names()
] + [
    "poly:degree=3,constant=0.3",
    "poly:degree=2,constant=0",
    "taylor:order=3",
    "favor:features=8,kind=trig",
    "favor:features=8,kind=hyperbolic",
    "hedgehog:activation=exp",
    "hedgehog:separate=true",
]  # fmt: skip
POINTS = np.random.default_rng(0).standard_normal((5, 3))


@pytest.mark.parametrize("text", TEXTS)
def test_every_map_declares_its_cost_and_its_number_of_features(text):
    found = maps.get(text)
    for width in (1, 2, 5):
        assert found.operations(width).features == found.dim(width)
        assert costs.feature_cost(text).features.subs(D=width) == found.dim(width)
    assert costs.feature_cost(text).counted
    names = found.feature_names(["a", "b", "c"])
    assert len(names) == len(set(names)) == found.dim(3)


@pytest.mark.parametrize("text", TEXTS)
def test_declared_monomials_are_the_features_in_their_order(text):
    found = maps.get(text)
    listed = found.monomials(3)
    assert (listed is None) == (found.name not in ("poly", "taylor"))
    if listed is not None:
        columns = [
            math.sqrt(m.square) * np.prod([POINTS[:, i - 1] for i in m.row if i] or [np.ones(5)], 0)
            for m in listed
        ]
        np.testing.assert_allclose(np.stack(columns, axis=1), found.phi(POINTS), rtol=1e-12)


@pytest.mark.parametrize("text", TEXTS)
def test_the_declared_form_is_the_kernel(text):
    found = maps.get(text)
    form = found.kernel_form
    if form is None:
        assert found.formula is not None or found.name in ("cosformer", "focused", "t2r")
        return
    t = POINTS @ POINTS.T
    wanted = np.exp(t) if form.coefficients is None else sum(
        float(c) * (t + float(form.shift)) ** r for r, c in form.coefficients.items()
    )  # fmt: skip
    np.testing.assert_allclose(found.kernel(POINTS, POINTS), wanted, rtol=1e-12)


def test_weights_and_biases_count():
    plain = maps.T2R(4, weight=np.ones((3, 4)))
    biased = maps.T2R(4, weight=np.ones((3, 4)), bias=np.ones(4))
    assert plain.operations(3).elementwise + 4 == biased.operations(3).elementwise
    assert maps.Hedgehog(np.ones((3, 2))).operations(3).products == 6
    assert maps.Hedgehog(np.ones((3, 2))).formula is None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Doubled(maps.Relu):
    """A subclass that changes φ and still has what ReLU declares."""

    def phi(self, x, positions=None):
        return 2 * super().phi(x)


def test_a_subclass_is_not_taken_at_the_word_of_its_parent():
    changed = Doubled()
    assert changed.formula == maps.Relu().formula
    with pytest.raises(ValueError, match="pass d"):
        costs.feature_cost(changed)
    assert not costs.feature_cost(changed, 3).counted
    proofs = pytest.importorskip("kerneltrick.proofs")
    kernel = "sum(i, relu(q[i])*relu(k[i]))"
    assert proofs.check_feature_map("relu", kernel)
    assert proofs.check_feature_map(changed, kernel, 2).status != "true"


def test_a_constant_is_declared_as_it_is_written():
    assert kt.maps.get("poly:degree=2,constant=0.3").kernel_form.shift == Fraction(3, 10)


@pytest.mark.parametrize("text", TEXTS)
def test_every_map_declares_its_formula_in_javascript(text):
    found = maps.get(text)
    assert bool(found.script) != bool(found.kernel_script)
