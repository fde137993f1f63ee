"""The compiled engine agrees with the dense engine on every instruction set."""

import dataclasses

import numpy as np
import pytest
from native_cases import (
    CASES,
    EVERY,
    LENGTHS,
    custom,
    each_isa,
    inputs,
    learned,
    make_map,
    options_of,
    share,
)
from oracle import MAPS, SIGNED_FEATURES, magnitude, turns, ulp

import kerneltrick as kt
from kerneltrick import maps

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.usefixtures("two_threads")

LONG = ["elu", "exp", "favor:features=16", "taylor:order=2", "taylor:order=3", "hedgehog"]


def parts(state):
    scale = np.exp(state.log_scale)
    return state.U * scale[..., None, None], state.Z * scale[..., None], state.log_decay


@pytest.mark.parametrize("text", EVERY)
def test_float64_equals_dense_with_every_option(text, monkeypatch):
    for case in share(CASES, text, 4 if text in MAPS else 2):
        arrays, options = options_of(case, text)
        expected, end = kt.linear_attention(*arrays, engine="dense", return_state=True, **options)
        for name in each_isa(monkeypatch):
            out, after = kt.linear_attention(*arrays, engine="native", return_state=True, **options)
            told = f"{case}, {name}"
            size = np.max(np.abs(expected), initial=1.0)
            np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-11 * size, err_msg=told)
            for mine, theirs in zip(parts(after), parts(end), strict=True):
                size = np.max(np.abs(theirs), where=np.isfinite(theirs), initial=0)
                np.testing.assert_allclose(
                    mine, theirs, rtol=1e-10, atol=1e-11 * size, err_msg=told
                )
            assert (after.start, after.stop) == (end.start, end.stop)
            assert after.fingerprint == end.fingerprint


def columns_of(text, width):
    """Compare numerator and normaliser separately where they may cancel."""
    if text in SIGNED_FEATURES:
        return [slice(0, width - 1), slice(width - 1, width)]
    return [slice(None)]


@pytest.mark.parametrize("text", [text for text in EVERY if text in LONG or text not in MAPS])
def test_float32_is_as_accurate_as_the_naive_formula(text, monkeypatch):
    d, width = 9, 11
    for n, causal in turns(EVERY.index(text), LENGTHS, [False, True]):
        if n == 1000 and text not in LONG:
            continue
        heads = {1: 64, 1000: 1}.get(n, 8)
        # Normalised, the dense engine divides a column of ones by itself: compared with 0.
        q, k, v = inputs(
            n, d, width, (heads, heads), dtype=np.float32, seed=1, ones=text in SIGNED_FEATURES
        )
        options = {"causal": causal, "on_zero": "zero", "normalize": text not in SIGNED_FEATURES}
        feature_map = make_map(text, heads, d)
        wide = [x.astype(np.float64) for x in (q, k, v)]
        exact = kt.linear_attention(*wide, feature_map, engine="dense", **options)
        naive = kt.linear_attention(q, k, v, feature_map, engine="dense", **options)
        size = magnitude(maps.get(text), *wide, causal) if text in SIGNED_FEATURES else exact
        for name in each_isa(monkeypatch):
            ours = kt.linear_attention(q, k, v, feature_map, engine="native", **options)
            assert ours.dtype == np.float32
            for c in columns_of(text, width):
                allowed = 2 * np.abs(naive - exact)[..., c].max() + 3 * ulp(size[..., c])
                assert np.abs(ours - exact)[..., c].max() <= allowed, (n, causal, name, c)


@pytest.mark.parametrize("text", ["poly:degree=2", "taylor:order=2"])
def test_closed_form_of_many_features_equals_dense(text, isa):
    """d = 64: 2145 features, summed in longer blocks."""
    q, k, v = inputs(300, 64, 5, (2, 1))
    for causal in (True, False):
        options = {"causal": causal, "normalize": False}
        expected = kt.linear_attention(q, k, v, text, engine="dense", **options)
        out = kt.linear_attention(q, k, v, text, engine="native", **options)
        np.testing.assert_allclose(out, expected, rtol=1e-10, atol=1e-12 * abs(expected).max())


@pytest.mark.parametrize("kind", ["t2r each bias", "t2r bias each", "hedgehog each"])
def test_weights_per_head_with_grouped_queries(kind, isa):
    q, k, v = inputs(70, 6, 3, (6, 2))
    own = learned(kind, 2, 6)
    given = {"weight": own.weight, "bias": getattr(own, "bias", None)}
    repeated = {
        name: np.repeat(x, 3, 0) if x.ndim == 3 else x for name, x in given.items() if x is not None
    }
    spread = type(own)(**repeated)
    expected = kt.linear_attention(
        q, np.repeat(k, 3, 0), np.repeat(v, 3, 0), spread, causal=True, engine="dense"
    )
    out = kt.linear_attention(q, k, v, own, causal=True, engine="native")
    np.testing.assert_allclose(out, expected, rtol=1e-11)


class Scaled(maps.FeatureMap):
    """A user's map with a log-scale: the core takes its features, but has no gradient of them."""

    name = "scaled"

    def phi(self, x, positions=None):
        return x * x

    def phi_query(self, x, positions=None):
        return self.phi(x), 0 * x[..., 0]


def test_auto_is_native_where_it_can_be(monkeypatch):
    from kerneltrick.engines import ENGINES

    used = []
    for name, engine in list(ENGINES["attention"].items()):
        run = lambda *a, name=name, run=engine.run: used.append(name) or run(*a)  # noqa: E731
        monkeypatch.setitem(ENGINES["attention"], name, dataclasses.replace(engine, run=run))
    arrays = inputs(10, 4, 3)
    kt.linear_attention(*arrays)
    kt.linear_attention(*map(torch.asarray, arrays))
    kt.linear_attention(*(torch.asarray(x).requires_grad_() for x in arrays))
    kt.linear_attention(*arrays, custom, causal=True)
    kt.linear_attention(*(torch.asarray(x).requires_grad_() for x in arrays), custom)
    assert used == ["native"] * 5
    kt.linear_attention(*(torch.asarray(x).requires_grad_() for x in arrays), Scaled())
    kt.linear_attention(*(x.astype(x.dtype.newbyteorder()) for x in arrays))
    assert used[5:] == ["chunked"] * 2


def test_a_call_that_cannot_be_native_says_why():
    strict = pytest.importorskip("array_api_strict")
    arrays = inputs(10, 4, 3)
    with pytest.raises(ValueError, match=r"native engine cannot run.*strict.*engine=\"auto\""):
        kt.linear_attention(*(strict.asarray(x) for x in arrays), engine="native")
    leaves = [torch.asarray(x).requires_grad_() for x in arrays]
    with pytest.raises(ValueError, match=r"native engine cannot run.*gradients.*scaled"):
        kt.linear_attention(*leaves, Scaled(), engine="native")


def test_a_map_whose_number_of_features_depends_on_the_tokens_is_refused():
    k, v = np.ones((12, 4)), np.ones((12, 3))
    with pytest.raises(ValueError, match="1 features for one token, but 12 for 12 keys"):
        kt.linear_attention(k, k, v, lambda x: np.eye(len(x)), normalize=False, engine="native")
