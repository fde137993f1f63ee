"""φ(q)·φ(k) is the kernel it claims to be, with the dimension and sign it claims."""

import math

import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st
from oracle import MAPS

import kerneltrick as kt
from kerneltrick import maps

EXACT = [text for text in MAPS if maps.get(text).exact]


def direct_kernel(text, q, k):
    """Every kernel for one pair of vectors at positions 0 and 0, written out."""
    t = float(q @ k)

    def elu(x):
        return np.where(x > 0, x + 1, np.exp(x))

    def relu(x):
        return np.maximum(x, 0)

    def hedgehog(x):
        return np.exp(np.concatenate([x, -x]))

    def softened(x):
        return hedgehog(x) / hedgehog(x).sum()

    def focused(x):
        y = relu(x)
        z = y / (y.max() or 1)  # a factor changes nothing, and small cubes would vanish
        return np.linalg.norm(y) * z**3 / (np.linalg.norm(z**3) or 1)

    return {
        "identity": lambda: t,
        "focused:power=3": lambda: focused(q) @ focused(k),
        "elu": lambda: elu(q) @ elu(k),
        "relu": lambda: relu(q) @ relu(k),
        "relu2": lambda: relu(q) ** 2 @ relu(k) ** 2,
        "exp": lambda: np.exp(q) @ np.exp(k),
        "square": lambda: q**2 @ k**2,
        "cosformer:horizon=100000": lambda: relu(q) @ relu(k),
        "poly:degree=2": lambda: (t + 1) ** 2,
        "poly:degree=3,constant=0.5": lambda: (t + 0.5) ** 3,
        "taylor:order=2": lambda: 1 + t + t**2 / 2,
        "taylor:order=3": lambda: 1 + t + t**2 / 2 + t**3 / 6,
        "hedgehog": lambda: softened(q) @ softened(k),
        "hedgehog:activation=exp": lambda: hedgehog(q) @ hedgehog(k),
    }[text]()


vectors = st.lists(st.floats(-3, 3), min_size=1, max_size=6)


@given(data=st.data())
def test_features_multiply_to_the_kernel_written_out(data):
    q = np.array(data.draw(vectors))
    k = np.array(data.draw(st.lists(st.floats(-3, 3), min_size=len(q), max_size=len(q))))
    for text in [t for t in EXACT if not t.startswith("t2r")]:
        feature_map, expected = maps.get(text), direct_kernel(text, q, k)
        phi_q, phi_k = feature_map.phi(q[None])[0], feature_map.phi(k[None])[0]
        bound = 1e-14 * max(1.0, float(np.abs(phi_q) @ np.abs(phi_k))) * len(phi_q)
        assert abs(float(phi_q @ phi_k) - expected) <= bound, text
        gram = feature_map.kernel(q[None], k[None])
        assert abs(float(gram[0, 0]) - expected) <= bound, text


@each("power", [1, 2.5, 4])
def test_focusing_keeps_the_length_and_sharpens(power):
    x = np.random.default_rng(3).standard_normal((50, 6))
    x[:, 0] = np.abs(x[:, 0])  # no row without a positive coordinate
    y, phi = np.maximum(x, 0), maps.Focused(power).phi(x)
    np.testing.assert_allclose(np.linalg.norm(phi, axis=-1), np.linalg.norm(y, axis=-1))
    assert (phi.max(-1) >= (1 - 1e-12) * y.max(-1)).all()
    assert (phi.argmax(-1) == y.argmax(-1)).all()
    assert power > 1 or np.allclose(phi, y)


def test_focusing_survives_the_largest_and_smallest_numbers_and_zeros():
    x = np.array([[1e200, 2e200, -1], [1e-200, 2e-200, -1], [-1, -2, 0], [0.0, 0.0, 0.0]])
    phi = maps.Focused(3).phi(x)
    assert np.isfinite(phi).all()
    np.testing.assert_allclose(phi[0] / 1e200, phi[1] / 1e-200)
    assert (phi[2:] == 0).all()
    for wrong in (0.5, np.inf, np.nan):
        with pytest.raises(ValueError, match="focused needs a finite power ≥ 1"):
            maps.Focused(wrong)


@each("text", EXACT)
def test_kernel_is_the_gram_matrix_of_the_features(text):
    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((2, 3, 20, 5))
    feature_map = maps.get(text)
    gram = feature_map.phi(q) @ feature_map.phi(k).mT
    np.testing.assert_allclose(feature_map.kernel(q, k), gram, rtol=1e-12, atol=1e-12)


@each("text", MAPS)
@each("d", [1, 2, 6])
def test_stabilised_features_times_their_scale_are_phi(text, d):
    feature_map = maps.get(text)
    x = np.random.default_rng(2).standard_normal((4, 9, d))
    phi = feature_map.phi(x)
    assert phi.shape == (4, 9, feature_map.dim(d))
    for side in (feature_map.phi_query, feature_map.phi_key):
        features, log_scale = side(x)
        whole = features if log_scale is None else features * np.exp(log_scale)[..., None]
        np.testing.assert_allclose(whole, phi, rtol=1e-13)


def test_text_form_gives_the_map_back():
    x = np.random.default_rng(4).standard_normal((5, 3))
    for text in MAPS:
        again = maps.get(str(maps.get(text)))
        assert str(again) == text
        np.testing.assert_array_equal(again.phi(x), maps.get(text).phi(x))
    assert {text.partition(":")[0] for text in MAPS} == set(maps.names()) - {"softmax"}


@each("text", MAPS)
def test_sign_holds_on_data(text):
    feature_map = maps.get(text)
    rng = np.random.default_rng(3)
    q, k = 2 * rng.standard_normal((2, 200, 3))
    gram = feature_map.phi(q) @ feature_map.phi(k).T
    if feature_map.sign == "positive":
        assert (gram > 0).all()
    elif feature_map.sign == "non-negative":
        assert (gram > -1e-12 * np.abs(gram).max()).all()
        assert (np.abs(gram) < 1e-3 * gram.max()).any()
    else:
        assert (gram < 0).any()


def test_quadratic_map_has_the_root_two_on_linear_and_cross_terms():
    x = np.array([[2.0, 3.0]])
    features = maps.get("poly:degree=2").phi(x)[0]
    r = math.sqrt(2)
    assert sorted(features) == pytest.approx(sorted([1, 2 * r, 3 * r, 4, 9, 6 * r]))


def test_cosformer_weighs_by_distance():
    feature_map = maps.get("cosformer:horizon=10")
    x = np.ones((11, 1))
    gram = feature_map.phi(x) @ feature_map.phi(x).T
    i = np.arange(11)
    expected = np.cos(np.pi * (i[:, None] - i[None, :]) / 20)
    np.testing.assert_allclose(gram, expected, atol=1e-15)
    np.testing.assert_allclose(feature_map.kernel(x, x), expected, atol=1e-15)
    moved = feature_map.phi(x, i + 7.0)
    np.testing.assert_allclose(moved @ moved.T, expected, atol=1e-14)


def test_cosformer_refuses_tokens_beyond_its_horizon():
    q = np.ones((12, 2))
    with pytest.raises(ValueError, match=r"up to 11 apart.*horizon=11"):
        kt.linear_attention(q, q, q, "cosformer:horizon=10", causal=True)
    kt.linear_attention(q, q, q, "cosformer:horizon=11", causal=True)


def test_elu_is_within_3_ulp_of_exact_down_to_minus_80_in_float32():
    x = np.linspace(-80, 5, 20001, dtype=np.float32)
    y = maps.get("elu").phi(x[:, None])[:, 0]
    exact = np.where(x > 0, x.astype(np.float64) + 1, np.exp(x.astype(np.float64)))
    assert (np.abs(y - exact) <= 3 * np.spacing(exact.astype(np.float32))).all()
    assert (y > 0).all()


def test_elu_gradient_is_finite_at_100():
    torch = pytest.importorskip("torch")
    x = torch.tensor([[-100.0], [-1.0], [0.0], [1.0], [100.0]], requires_grad=True)
    maps.get("elu").phi(x).sum().backward()
    expected = [math.exp(-100), math.exp(-1), 1, 1, 1]
    assert x.grad.flatten().tolist() == pytest.approx(expected, rel=1e-6)


def test_high_orders_are_exact_as_low_ones_up_to_what_float64_holds():
    x = np.linspace(-2, 2, 9)[:, None]
    for text in ("taylor:order=30", "poly:degree=30"):
        feature_map = maps.get(text)
        phi = feature_map.phi(x)
        size = np.abs(phi) @ np.abs(phi).T
        assert (np.abs(phi @ phi.T - feature_map.kernel(x, x)) <= 1e-12 * size).all(), text
    for text in ("taylor:order=171", "poly:degree=1000"):
        with pytest.raises(ValueError, match="≤ 170"):
            maps.get(text)


def test_text_shows_what_differs_from_the_default():
    assert str(maps.get("favor:features=64,kind=positive,seed=0")) == "favor:features=64"
    assert str(maps.get("favor:orthogonal=false,seed=3,features=8")) == (
        "favor:features=8,seed=3,orthogonal=false"
    )
    assert str(maps.get("taylor")) == "taylor:order=2"
    assert str(maps.get(" poly : degree = 3 , constant = 2 ")) == "poly:degree=3,constant=2"


@each(
    "text, message",
    [
        ("ell", r"unknown feature map 'ell'; did you mean 'elu'"),
        ("nonsense", r"known are identity, elu"),
        ("favor:feature=8", r"favor has no parameter 'feature'.*'features'"),
        ("elu:x=1", r"it has no parameters"),
        ("favor:features=eight", r"features to be a whole number, not 'eight'"),
        ("favor:features=0", r"positive whole number, not 0"),
        ("favor:features", r"expected key=value"),
        ("favor:seed=1,seed=2", r"gives seed twice"),
        ("favor:features=7,kind=trig", r"must be even, not 7"),
        ("favor:seed=-1", r"whole number ≥ 0, not -1"),
        ("favor:orthogonal=maybe", r"true or false, not 'maybe'"),
        ("poly:constant=-1", r"constant ≥ 0, not -1"),
        ("cosformer", r"cosformer needs horizon"),
        ("hedgehog:activation=relu", r"one of softmax, exp"),
        ("t2r:weight=1", r"no parameter 'weight' that text can give"),
    ],
)
def test_bad_text_is_refused_by_name(text, message):
    with pytest.raises(ValueError, match=message):
        maps.get(text)


def test_what_is_no_map_is_refused():
    for wrong, message in ((3, "not int"), (maps.Elu, "is a class")):
        with pytest.raises(TypeError, match=message):
            maps.get(wrong)


def test_plain_functions_are_maps():
    q, k, v = np.random.default_rng(5).standard_normal((3, 30, 4))
    ours = kt.linear_attention(q, k, v, lambda x: np.exp(x), causal=True)
    np.testing.assert_allclose(ours, kt.linear_attention(q, k, v, "exp", causal=True), rtol=1e-12)
    assert maps.get(np.exp).dim(4) == 4


def test_a_function_sees_arrays_laid_out_as_the_callers():
    shapes = set()

    def phi(x):
        shapes.add(x.shape[:-2])
        return np.hstack([x, x * x]) if x.ndim == 2 else np.concatenate([x, x * x], axis=-1)

    q = np.random.default_rng(5).random((30, 4))
    assert kt.linear_attention(q, q, q, phi, causal=True).shape == (30, 4)
    assert shapes == {()}
    with pytest.raises(ValueError, match=r"must turn an array \(..., n, d\) into"):
        kt.linear_attention(q, q, q, lambda x: x.sum(axis=-1))


class TestLearned:
    @each("activation, separate", [("softmax", False), ("softmax", True), ("exp", False)])
    def test_hedgehog_with_weights_of_their_own_for_keys(self, activation, separate):
        """Per head and separately for queries and keys, every engine follows the formula."""
        rng = np.random.default_rng(9)
        q, k, v = (rng.standard_normal((h, 7, 4)) for h in (4, 2, 2))
        ours, theirs = rng.standard_normal((4, 4, 5)), rng.standard_normal((2, 4, 5))
        learned = maps.Hedgehog(ours, activation, theirs, separate)
        assert learned.dim(4) == 10

        def features(x, weight):
            halves = [np.exp(x @ weight / 2**0.5), np.exp(-x @ weight / 2**0.5)]
            if activation == "softmax" and separate:
                halves = [half / half.sum(-1, keepdims=True) for half in halves]
            both = np.concatenate(halves, axis=-1)
            joint = activation == "softmax" and not separate
            return both / both.sum(-1, keepdims=True) if joint else both

        for h in range(4):
            weights = features(q[h], ours[h]) @ features(k[h // 2], theirs[h // 2]).T
            alone = maps.Hedgehog(ours[h], activation, theirs[h // 2], separate)
            found = alone.kernel(q[h] / 2**0.5, k[h // 2] / 2**0.5)
            np.testing.assert_allclose(found, weights)
            expected = weights @ v[h // 2] / weights.sum(-1, keepdims=True)
            for engine in ("auto", "dense", "recurrent", "chunked"):
                out = kt.linear_attention(q, k, v, learned, engine=engine)
                np.testing.assert_allclose(out[h], expected, rtol=1e-10)

    def test_keys_have_a_map_of_their_own(self):
        learned = maps.Hedgehog(np.eye(3), "exp", key_weight=2 * np.eye(3), separate=True)
        x = np.array([[1.0, -0.5, 0.25]])
        np.testing.assert_allclose(learned.for_keys.phi(x), learned.phi(2 * x))
        for_keys, log_scale = learned.phi_key(x)
        np.testing.assert_allclose(for_keys * np.exp(log_scale)[..., None], learned.phi(2 * x))
        assert maps.get("elu").for_keys is maps.get("elu")

    @each(
        "learned",
        [
            maps.Hedgehog(np.eye(3), key_weight=2 * np.ones((2, 3, 3), np.float32), separate=True),
            maps.Hedgehog(activation="exp"),
            maps.T2R(weight=np.ones((3, 5)), bias=np.arange(5.0)),
            maps.get("favor:features=6,kind=trig,seed=4,orthogonal=false"),
            maps.get("poly:degree=3,constant=0.5"),
        ],
    )
    def test_a_file_gives_the_map_back(self, learned, tmp_path):
        maps.save(learned, tmp_path / "map")
        again = maps.load(tmp_path / "map")
        assert type(again) is type(learned)
        assert str(again) == str(learned)
        x = np.random.default_rng(0).standard_normal((2, 4, 3))
        np.testing.assert_array_equal(again.kernel(x, x), learned.kernel(x, x))

    def test_what_is_no_file_of_a_map_is_refused(self, tmp_path):
        from safetensors.numpy import save_file

        for own in (maps.get(np.exp), type("Mine", (maps.Elu,), {})()):
            with pytest.raises(TypeError, match="of what is your own, keep the code"):
                maps.save(own, tmp_path / "map")
        with pytest.raises(FileNotFoundError, match="no file of a map"):
            maps.load(tmp_path / "none")
        (tmp_path / "text").write_text("elu")
        with pytest.raises(ValueError, match="not a readable file of a map"):
            maps.load(tmp_path / "text")
        good = {"format": "kerneltrick.FeatureMap/1", "name": "hedgehog"}
        for metadata, tensors, message in (
            ({}, {}, "expected format"),
            ({**good, "name": "elo"}, {}, "did you mean 'elu'"),
            ({**good, "wait": "3"}, {}, "no parameter 'wait'"),
            (good, {"w": np.eye(3)}, r"no weights \['w'\]"),
            (good, {"activation": np.eye(3)}, r"no weights \['activation'\]"),
            (good, {"weight": np.ones(3)}, "needs weight to be an array"),
        ):
            save_file({"x": np.ones(1)} if metadata == {} else tensors, tmp_path / "bad", metadata)
            with pytest.raises(ValueError, match=message):
                maps.load(tmp_path / "bad")

    def test_text_tells_weights_apart(self):
        eye = np.eye(3)
        texts = {str(maps.Hedgehog(eye, key_weight=w)) for w in (None, eye, 2 * eye)}
        assert len(texts) == 3
        assert all("weight=sha256-" in text for text in texts)
        assert str(maps.Hedgehog(eye)) == str(maps.Hedgehog(np.eye(3)))
        assert str(maps.Hedgehog(eye)) != str(maps.Hedgehog(2 * eye))
        assert str(maps.get("hedgehog:separate=true")) == "hedgehog:separate=true"

    def test_a_state_of_other_weights_for_keys_is_refused(self):
        x = np.ones((5, 3))
        one, two = (maps.Hedgehog(np.eye(3), key_weight=c * np.eye(3)) for c in (1.0, 2.0))
        _, state = kt.linear_attention(x, x, x, one, causal=True, return_state=True)
        with pytest.raises(ValueError, match="the state is of hedgehog:"):
            kt.linear_attention(x, x, x, two, causal=True, state=state)

    def test_t2r_is_relu_of_an_affine_map(self):
        rng = np.random.default_rng(7)
        x, weight, bias = rng.standard_normal((10, 4)), rng.standard_normal((4, 6)), np.arange(6.0)
        expected = np.maximum(x @ weight + bias, 0)
        np.testing.assert_allclose(maps.T2R(weight=weight, bias=bias).phi(x), expected)

    @each(
        "build, message",
        [
            (lambda: maps.Hedgehog(np.ones(3)), r"\(d, p\) or \(heads, d, p\), not \(3,\)"),
            (lambda: maps.Hedgehog([[1.0]]), "not list"),
            (lambda: maps.Hedgehog(key_weight=np.ones(3)), r"key_weight to be .*, not \(3,\)"),
            (lambda: maps.Hedgehog(key_weight=np.ones((3, 4))), r"not \(3, 3\) and \(3, 4\)"),
            (lambda: maps.Hedgehog(np.eye(3), key_weight=np.eye(4)), "of the same d and p"),
            (lambda: maps.T2R(weight=np.ones((2, 3)), bias=np.ones(2)), "each of its 3 features"),
            (lambda: maps.Hedgehog(np.eye(3)).phi(np.ones((2, 4))), "inputs of 3 dimensions"),
        ],
    )
    def test_bad_weights_are_refused(self, build, message):
        with pytest.raises(ValueError, match=message):
            build()
