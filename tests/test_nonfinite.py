"""NaN and inf affect exactly the outputs that depend on them; a zero normaliser is reported."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import MAPS, same_bits, turns

import kerneltrick as kt
from kerneltrick import maps

ENGINES = ["dense", "recurrent", "chunked", "native"]


def inputs(n=100, seed=0):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((2, n, w)) for w in (4, 4, 3)]


@pytest.mark.parametrize("text", MAPS)
def test_exactly_the_dependent_outputs_become_nan(text):
    for engine, poison in turns(text, ENGINES, [np.nan, np.inf, -np.inf]):
        n, late = (40, 20) if engine == "recurrent" else (100, 65)
        q, k, v = inputs(n)
        options = {"causal": True, "on_zero": "zero", "engine": engine}
        clean = kt.linear_attention(q, k, v, text, **options)
        for name, where in (("q", (0, late - 9, 2)), ("k", (1, late + 5, 0)), ("v", (0, late, 1))):
            dirty = {"q": q.copy(), "k": k.copy(), "v": v.copy()}
            dirty[name][where] = poison
            out, state = kt.linear_attention(
                **dirty, feature_map=text, return_state=True, **options
            )
            expected = np.zeros(out.shape, bool)
            head, token, column = where
            if name == "q":
                expected[head, token] = True
            elif name == "k":
                expected[head, token:] = True
            else:
                expected[head, token:, column] = True
            np.testing.assert_array_equal(np.isnan(out), expected, err_msg=engine)
            assert same_bits(out[~expected], clean[~expected]), engine
            spoiled = np.isnan(state.U)
            assert spoiled.any() == (name != "q")
            if name == "k":
                assert spoiled[head].all()
                assert np.isnan(state.Z[head]).all()
            if name == "v":
                assert spoiled[head, :, column].all()
                assert not np.isnan(state.Z).any()


@pytest.mark.parametrize("engine", ENGINES)
def test_nan_does_not_cross_a_segment_and_rides_in_the_state(engine):
    q, k, v = inputs(60)
    ids = np.repeat([0, 1, 2], 20)
    v[0, 5, 1] = np.nan
    options = {"causal": True, "engine": engine, "chunk_size": 16}
    out, state = kt.linear_attention(q, k, v, segment_ids=ids, return_state=True, **options)
    assert np.isnan(out[0, 5:20, 1]).all()
    assert np.isnan(out).sum() == 15
    assert not np.isnan(state.U).any()
    _, bad = kt.linear_attention(q, k, v, return_state=True, **options)
    again = kt.linear_attention(*inputs(60, 1), segment_ids=ids, state=bad, **options)
    assert np.isnan(again[0, :20, 1]).all()
    assert np.isnan(again).sum() == 20


@pytest.mark.parametrize("engine", ENGINES)
def test_full_attention_is_spoiled_everywhere_by_a_bad_key_or_value(engine):
    q, k, v = inputs(30)
    v[0, 3, 1] = np.nan
    out = kt.linear_attention(q, k, v, engine=engine)
    assert np.isnan(out[0, :, 1]).all()
    assert np.isnan(out).sum() == 30
    k[1, 7, 0] = np.inf
    assert np.isnan(kt.linear_attention(q, k, v, engine=engine)[1]).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_overflow_in_one_segment_stays_there(engine):
    q, k, v = (x.astype(np.float32) for x in inputs(60))
    k[:, :20] *= np.float32(1e25)
    ids = np.repeat([0, 1, 2], 20)
    with np.errstate(all="ignore"):
        out = kt.linear_attention(
            q, k, v, "square", causal=True, segment_ids=ids, engine=engine, on_zero="nan"
        )
    clean = kt.linear_attention(
        *(x[:, 20:] for x in (q, k, v)), "square", causal=True, segment_ids=ids[20:], engine=engine
    )
    np.testing.assert_allclose(out[:, 20:], clean, rtol=1e-5)


@pytest.mark.parametrize("how", ["token", "feature", "raw", "scale", "window", "softmax"])
def test_what_has_overflowed_is_forgotten_with_its_weight(how):
    """Values near the largest of float32, whose weights are exactly 0 from token 40 on."""
    q, k, v = (x.astype(np.float32) for x in inputs(100))
    options = {"causal": True, "normalize": how != "raw"}
    if how in ("token", "feature", "raw"):
        decay = np.where(np.arange(100)[:, None] == 40, np.float32(-200), np.float32(-0.1))
        decay = np.broadcast_to(decay, k.shape)
        options |= {"feature_map": "elu", "log_decay": decay if how == "feature" else decay[..., 0]}
    else:
        q[:], k[:], k[:, 40:, 0] = 1, 0, 400
        window = {"scale": 0, "window": 16, "softmax": None}[how]
        options |= {"feature_map": "exp", "scale": 1.0, "window": window}
    clean = np.where(np.arange(100)[:, None] < 40, np.float32(0), v)
    v = np.where(np.arange(100)[:, None] < 40, v * np.float32(1e38), v).clip(-3e38, 3e38)
    for engine in ENGINES:
        with np.errstate(all="ignore"):
            out = kt.linear_attention(q, k, v, engine=engine, **options)[:, 40:]
        expected = kt.linear_attention(q, k, clean, engine=engine, **options)[:, 40:]
        np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6, err_msg=engine)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("normalize", [True, False], ids=["normalized", "raw"])
@pytest.mark.parametrize("shape", [(2,), (2, 70), (2, 70, -1)], ids=["head", "token", "feature"])
@pytest.mark.parametrize("text", ["elu", "favor:features=16", "exp", "poly:degree=2"])
def test_large_values_beside_decays_are_right(text, shape, normalize, engine):
    """No factor of a value, of a sum of them or of the state is larger than its weight."""
    q, k, v = (np.abs(x[:, :70]).astype("f4") for x in inputs())
    v *= np.float32(1e30)
    width = maps.get(text).dim(4)
    rates = np.random.default_rng(1).random([width if x == -1 else x for x in shape])
    options = {"feature_map": text, "causal": True, "normalize": normalize}
    wide = (x.astype(float) for x in (q, k, v))
    exact = kt.linear_attention(*wide, log_decay=-2 * rates, engine="dense", **options)
    decay = (-2 * rates).astype("f4")
    out = kt.linear_attention(q, k, v, log_decay=decay, engine=engine, **options)
    np.testing.assert_allclose(out, exact, rtol=2e-5)


class TestVanishingNormalizer:
    q = np.array([[1.0, -1.0]])
    k = np.array([[-1.0, 1.0]])
    v = np.array([[5.0]])

    @pytest.mark.parametrize("engine", ENGINES)
    def test_relu_of_opposite_signs_is_reported(self, engine):
        for text, causal in (("relu", False), ("relu2", False), ("relu", True), ("relu2", True)):
            with pytest.raises(kt.VanishingNormalizerError, match=r"index \(0,\).*non-negative"):
                kt.linear_attention(self.q, self.k, self.v, text, causal=causal, engine=engine)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_nan_and_zero_fill_only_the_rows_that_vanish(self, engine):
        q = np.array([[1.0, -1.0], [-1.0, 1.0], [1.0, 1.0]])
        k = np.array([[-1.0, 1.0]] * 3)
        v = np.array([[5.0]] * 3)
        for fill, value in (("nan", np.nan), ("zero", 0.0)):
            out = kt.linear_attention(q, k, v, "relu", on_zero=fill, engine=engine)
            np.testing.assert_array_equal(out, [[value], [5.0], [5.0]])

    @pytest.mark.parametrize("engine", ENGINES)
    @pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
    def test_sums_below_the_normal_numbers_count_as_0(self, causal, engine):
        """What is not 0 is right: each of 60 weights is rounded to 10⁻⁴⁵."""
        rng = np.random.default_rng(0)
        q = np.logspace(-27, -15, 60)[rng.permutation(60), None] * np.ones(2)
        q, k, v = (
            x.astype(np.float32) for x in (q, 1e-20 * rng.random((60, 2)), rng.random((60, 3)))
        )
        out = kt.linear_attention(q, k, v, "relu", causal=causal, engine=engine, on_zero="nan")
        weights = q.astype(float) @ k.astype(float).T
        weights = np.tril(weights) if causal else weights
        total = weights.sum(1, keepdims=True)
        expected = np.where(total < np.finfo(np.float32).tiny, np.nan, weights / total @ v)
        np.testing.assert_allclose(out, expected, rtol=1e-4)

    def test_the_message_names_the_place(self):
        q, k = np.ones((2, 3, 4, 2)), np.ones((2, 3, 4, 2))
        q[1, 2, 3] = -1
        with pytest.raises(kt.VanishingNormalizerError, match=r"1 query sums.*\(1, 2, 3\)"):
            kt.linear_attention(q, k, k, "relu")

    def test_masked_queries_are_not_examined(self):
        q = np.array([[1.0, -1.0], [1.0, 1.0]])
        k = np.array([[-1.0, 1.0]] * 2)
        out = kt.linear_attention(q, k, k, "relu", query_mask=np.array([False, True]))
        assert (out[0] == 0).all()
        out = kt.linear_attention(q, k, k, "relu", causal=True, mask=np.array([False, True]))
        assert (out[0] == 0).all()

    def test_cancelling_signs_are_reported(self):
        q, k = np.array([[1.0]]), np.array([[1.0], [-1.0]])
        with pytest.raises(kt.VanishingNormalizerError, match="of any sign"):
            kt.linear_attention(q, k, np.ones((2, 1)), "identity")

    def test_tiny_sums_are_not_zero(self):
        x = np.full((4, 2), -300.0)
        for engine in ENGINES:
            out = kt.linear_attention(x, x, np.ones((4, 1)), "elu", engine=engine)
            np.testing.assert_allclose(out, 1.0, err_msg=engine)

    def test_unnormalised_has_nothing_to_divide_by(self):
        assert kt.linear_attention(self.q, self.k, self.v, "relu", normalize=False) == 0

    @given(seed=st.integers(0, 10**6))
    def test_rows_raised_are_the_rows_whose_weights_are_all_zero(self, seed):
        rng = np.random.default_rng(seed)
        q, k = rng.standard_normal((2, 6, 2))
        out = kt.linear_attention(q, k, np.ones((6, 1)), "relu", on_zero="nan", causal=True)
        weights = np.tril(np.maximum(q, 0) @ np.maximum(k, 0).T)
        np.testing.assert_array_equal(np.isnan(out[:, 0]), weights.sum(-1) == 0)
