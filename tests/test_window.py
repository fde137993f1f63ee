"""Exact weights near, those of the map far: every setting from linear to softmax attention.

The truth is the loop over pairs in oracle.py. Every engine must equal it, in outputs and gradients.
"""
# ruff: noqa: E501  (one call and its message a line)

import functools
import itertools

import numpy as np
import pytest
from oracle import MAPS, keeps, near_far_heads, same_bits, turns

import kerneltrick as kt
from kerneltrick import maps

ENGINES = ["dense", "recurrent", "chunked", "native"]
SOME = ["elu", "relu", "exp", "cosformer:horizon=100000", "favor:features=16", "hedgehog"]


def inputs(n, seed=0, heads=(4, 2), batch=(), d=4, width=3, dtype=np.float64):
    rng = np.random.default_rng(seed)
    shapes = ((heads[0], d), (heads[1], d), (heads[1], width))
    return [rng.standard_normal((*batch, h, n, w)).astype(dtype) for h, w in shapes]


@functools.cache
def by_the_loop(text, causal, relative):
    """Inputs, gains, options and the slow reference, which is the same for all engines."""
    n = 23
    data, mask = inputs(n), np.random.default_rng(1).random(n) < 0.8
    gain = np.array([-1.0, 0.5, 0.0, 1.0])
    options = {"causal": causal, "mask": mask, "window": 5, "sinks": 2, "normalize": False}
    return data, gain, options, near_far_heads(*data, text, gain=gain, relative=relative, **options)


@pytest.mark.parametrize("text", [*MAPS, "softmax"])
def test_every_map_equals_the_loop_over_pairs(text):
    number = [*MAPS, "softmax"].index(text)
    relative = number % 4 > 1
    for engine, causal in turns(number, ENGINES, [False, True]):
        if engine == "native" and maps.fused(maps.get(text)) is None:
            continue  # the core does not know this map; beside a window it is chunked
        data, gain, options, want = by_the_loop(text, causal, relative)
        out = kt.linear_attention(
            *data, text, far=kt.Far(gain, relative), engine=engine, chunk_size=4, **options
        )
        np.testing.assert_allclose(out, want, rtol=1e-9, atol=1e-9, err_msg=engine)


@pytest.mark.parametrize("window", [63, 64, 65])
def test_windows_around_the_length_of_a_chunk(window):
    q, k, v = inputs(150, heads=(1, 1))
    for causal in (False, True):
        options = {"causal": causal, "window": window, "sinks": 1}
        gain = -np.log(maps.get("elu").unit(4))
        want = near_far_heads(q, k, v, "elu", gain=gain, **options)
        for engine in ("dense", "chunked", "native"):
            out = kt.linear_attention(q, k, v, "elu", engine=engine, **options)
            np.testing.assert_allclose(out, want, rtol=1e-9, atol=1e-10, err_msg=engine)


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("text", ["elu", "softmax"])
def test_a_long_window_beside_sinks(text, causal):
    """Enough keys for several panels in the core, with the sinks in front of the first."""
    q, k, v = inputs(400, heads=(1, 1))
    options = {"causal": causal, "window": 300, "sinks": 3}
    out = kt.linear_attention(q, k, v, text, engine="native", **options)
    want = kt.linear_attention(q, k, v, text, engine="dense", **options)
    np.testing.assert_allclose(out, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("text", ["elu", "identity", "favor:features=16", "softmax"])
def test_a_window_as_long_as_the_text_is_softmax_attention(text):
    q, k, v = inputs(40)
    for engine, causal in turns([*MAPS, "softmax"].index(text), [*ENGINES, "auto"], [False, True]):
        softmax = kt.softmax_attention(q, k, v, causal=causal)
        windows = (40, 45, 10**12, 0) if text == "softmax" else (40, 45, 10**12)
        for window in windows:
            out = kt.linear_attention(q, k, v, text, window=window, causal=causal, engine=engine)
            np.testing.assert_allclose(out, softmax, rtol=1e-10, atol=1e-12, err_msg=engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_window_0_is_linear_attention_to_the_bit(engine):
    q, k, v = inputs(80, dtype=np.float32)
    for text, causal in turns(0, SOME, [False, True]):
        options = {"causal": causal, "engine": engine, "on_zero": "nan"}
        with_it = kt.linear_attention(q, k, v, text, window=0, sinks=0, far=None, **options)
        assert same_bits(with_it, kt.linear_attention(q, k, v, text, **options)), text


@pytest.mark.parametrize("engine", ENGINES)
def test_the_window_alone_is_softmax_attention_under_a_sliding_mask(engine):
    n, window, sinks = 50, 6, 2
    q, k, v = inputs(n, heads=(1, 1))
    i, j = np.arange(n)[:, None], np.arange(n)
    scores = q[0] @ k[0].T / 2
    for causal in (False, True):
        seen = (abs(i - j) < window) | (j < sinks)
        seen &= (j <= i) | (not causal)
        weights = np.where(seen, np.exp(scores), 0)
        weights /= weights.sum(axis=-1, keepdims=True)
        options = {"causal": causal, "window": window, "sinks": sinks}
        out = kt.linear_attention(q, k, v, "softmax", engine=engine, **options)
        np.testing.assert_allclose(out[0], weights @ v[0], rtol=1e-10)
        shown = kt.attention_weights(q, k, "softmax", **options)
        np.testing.assert_allclose(shown[0], weights, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("relative", [False, True], ids=["absolute", "relative"])
@pytest.mark.parametrize("normalize", [True, False], ids=["normalised", "raw"])
@pytest.mark.parametrize("text", ["elu", "favor:features=8"])
def test_weights_times_values_are_the_output(text, normalize, relative):
    q, k, v = inputs(30, heads=(2, 2))
    for causal in (False, True):
        options = {"causal": causal, "normalize": normalize, "window": 4, "sinks": 1}
        options["far"] = kt.Far(-0.5, relative)
        weights = kt.attention_weights(q, k, text, **options)
        np.testing.assert_allclose(
            weights @ v, kt.linear_attention(q, k, v, text, **options), rtol=1e-9, atol=1e-12
        )
        rows = kt.attention_weights(q, k, text, rows=[3, 29], **options)
        np.testing.assert_allclose(rows, weights[:, [3, 29]], rtol=1e-12)


@pytest.mark.parametrize(
    ("text", "engine"),
    [
        *itertools.product(
            ["elu", "favor:features=16", "hedgehog", "softmax"], ["dense", "chunked"]
        ),
        ("elu", "recurrent"),
    ],
)
def test_past_is_bit_identical_when_the_future_changes(text, engine):
    n, cuts = (30, (1, 9, 17)) if engine == "recurrent" else (100, (1, 9, 64, 77))
    q, k, v = inputs(n, heads=(2, 2), dtype=np.float32)
    options = {"causal": True, "on_zero": "nan", "engine": engine, "window": 9, "sinks": 2}
    for change, relative in ((1e4, False), (1e4, True), (np.nan, False), (np.inf, True)):
        options["far"] = kt.Far(0.0, relative)
        with np.errstate(all="ignore"):
            before = kt.linear_attention(q, k, v, text, **options)
            for cut in cuts:
                future = [x.copy() for x in (q, k, v)]
                for x in future:
                    x[:, cut:] *= np.float32(change)
                after = kt.linear_attention(*future, text, **options)
                assert same_bits(before[:, :cut], after[:, :cut]), (change, cut)


@pytest.mark.parametrize("window", [9, 10**6])
def test_past_is_bit_identical_when_the_sequence_grows(window):
    q, k, v = inputs(200, heads=(2, 2), dtype=np.float32)
    options = {"causal": True, "engine": "chunked", "window": window, "sinks": 2}
    whole = kt.linear_attention(q, k, v, "elu", **options)
    for n in (1, 63, 64, 65, 130):
        part = kt.linear_attention(q[:, :n], k[:, :n], v[:, :n], "elu", **options)
        assert same_bits(part, whole[:, :n]), n


# Not dense: it uses the library's n×n products, whose summation order depends on n.
@pytest.mark.parametrize("engine", [name for name in ENGINES if name != "dense"])
def test_past_is_bit_identical_when_a_sequence_that_goes_on_grows(engine):
    # In the middle of a block: the length of the next blocks must not decide where one begins.
    rng = np.random.default_rng(5)
    q, k, v = rng.normal(size=(3, 2, 160, 8))
    options = {"causal": True, "engine": engine, "window": 1, "sinks": 4}
    for start in (10,) if engine == "recurrent" else (10, 30):
        _, state = kt.linear_attention(
            q[:, :start], k[:, :start], v[:, :start], "elu", return_state=True, **options
        )
        rest = q[:, start:], k[:, start:], v[:, start:]
        whole = kt.linear_attention(*rest, "elu", state=state, **options)
        for n in (40, 90, 96, 100, 130):
            part = kt.linear_attention(*(x[:, :n] for x in rest), "elu", state=state, **options)
            assert same_bits(part, whole[:, :n]), (start, n)


@pytest.mark.parametrize("engine", ENGINES)
def test_padding_changes_nothing(engine):
    """Masked tokens have no effect, whatever they contain."""
    options = {"causal": True, "window": 5, "sinks": 2, "engine": engine, "chunk_size": 8}

    def run(*arrays, mask=None):
        return kt.linear_attention(*arrays, "elu", mask=mask, **options)

    checks = ["padding changes nothing", "masked rows", "NaN stays where it depends"]
    n = 20 if engine == "recurrent" else 40
    arrays = inputs(n, batch=(2,), heads=(2, 2))
    keeps(checks, run, "linear_attention", arrays, (1, 17, n - 1))


@pytest.mark.parametrize("engine", ENGINES)
def test_segments_are_sequences_of_their_own(engine):
    """Window and sinks restart with the segment."""
    q, k, v = inputs(40)
    ids = np.repeat([3, 1, 4], [7, 20, 13])
    options = {"causal": True, "window": 3, "sinks": 2, "engine": engine, "chunk_size": 8}
    out, state = kt.linear_attention(q, k, v, "elu", segment_ids=ids, return_state=True, **options)
    for first, last in ((0, 7), (7, 27), (27, 40)):
        own, after = kt.linear_attention(
            *(x[:, first:last] for x in (q, k, v)), "elu", return_state=True, **options
        )
        np.testing.assert_allclose(out[:, first:last], own, rtol=1e-10)
    np.testing.assert_allclose(state.U, after.U, rtol=1e-10)
    np.testing.assert_array_equal(state.near.k, after.near.k)
    np.testing.assert_array_equal(state.near.count, after.near.count)


@pytest.mark.parametrize("text", ["elu", "favor:features=16", "softmax"])
def test_exactly_the_dependent_outputs_become_nan(text):
    """A map without features forgets tokens that have left the window, including NaN."""
    q, k, v = inputs(60, heads=(2, 2))
    until = 30 + 7 if text == "softmax" else 60
    for engine in ENGINES:
        options = {"causal": True, "engine": engine, "window": 7, "chunk_size": 16}
        clean = kt.linear_attention(q, k, v, text, **options)
        for name, where in (("q", (0, 30, 2)), ("k", (1, 30, 0)), ("v", (0, 30, 1))):
            dirty = {"q": q.copy(), "k": k.copy(), "v": v.copy()}
            dirty[name][where] = np.nan
            out, state = kt.linear_attention(
                **dirty, feature_map=text, return_state=True, **options
            )
            spoiled = np.zeros(out.shape, bool)
            if name == "q":
                spoiled[0, 30] = True
            elif name == "k":
                spoiled[1, 30:until] = True
            else:
                spoiled[0, 30:until, 1] = True
            np.testing.assert_array_equal(np.isnan(out), spoiled, err_msg=engine)
            assert same_bits(out[~spoiled], clean[~spoiled]), engine
            later = inputs(10, seed=5, heads=(2, 2))
            after = kt.linear_attention(*later, text, state=state, **options)
            np.testing.assert_array_equal(
                np.isnan(after), np.broadcast_to(spoiled[:, -1:], after.shape), err_msg=engine
            )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_nan_in_the_window_of_a_state_spoils_what_follows(engine):
    q, k, v = inputs(20, heads=(1, 1))
    k[0, 18] = np.nan
    options = {"causal": True, "engine": engine, "window": 5, "on_zero": "nan"}
    _, state = kt.linear_attention(q, k, v, "softmax", return_state=True, **options)
    later = inputs(10, seed=3, heads=(1, 1))
    out = kt.linear_attention(*later, "softmax", state=state, **options)
    np.testing.assert_array_equal(np.isnan(out[0, :, 0]), np.arange(10) < 3)


@pytest.mark.parametrize("engine", ENGINES)
def test_full_attention_takes_any_number_of_queries_where_all_keys_are_near_or_sinks(engine):
    k, v = inputs(20)[1:]
    for count in (1, 12, 33):
        own = inputs(count, seed=4)[0]
        out = kt.linear_attention(own, k, v, "softmax", engine=engine)
        np.testing.assert_allclose(out, kt.softmax_attention(own, k, v), rtol=1e-10)
        out = kt.linear_attention(own, k, v, "elu", window=60, engine=engine)
        np.testing.assert_allclose(out, kt.softmax_attention(own, k, v), rtol=1e-10)
        out = kt.linear_attention(own, k, v, "elu", sinks=3, engine=engine, far=kt.Far(0.3, False))
        want = near_far_heads(own, k, v, "elu", sinks=3, gain=0.3)
        np.testing.assert_allclose(out, want, rtol=1e-10)
        late = np.arange(20) > 14  # the first key that is not hidden lies beyond the last query
        out = kt.linear_attention(own, k, v, "elu", window=60, mask=late, engine=engine)
        np.testing.assert_allclose(
            out, kt.softmax_attention(own, k[:, late], v[:, late]), rtol=1e-10
        )


@pytest.mark.parametrize("engine", ENGINES)
def test_raw_sums_near_by_do_not_know_the_scale_of_a_far_part_that_is_not_there(engine):
    """φ(q) of e^{160} and no far key yet: 0 · inf would be NaN."""
    q, k, v = (x[:1, :5].astype(np.float32) for x in inputs(5, d=3))
    q, k = (
        18 * q / np.linalg.norm(q, axis=-1, keepdims=True),
        k / np.linalg.norm(k, axis=-1, keepdims=True),
    )
    options = {"causal": True, "scale": 1.0, "normalize": False, "engine": engine}
    text = "favor:features=8,kind=trig"
    out = kt.linear_attention(q, k, v, text, window=9, far=0.0, **options)
    want = kt.linear_attention(q, k, v, "softmax", **options)
    np.testing.assert_allclose(out, want, rtol=1e-4)
    options |= {"causal": False, "mask": np.zeros(5, dtype=bool)}
    assert (kt.linear_attention(q, k, v, text, window=9, far=0.0, **options) == 0).all()


@pytest.mark.parametrize("engine", ENGINES)
def test_near_weights_survive_where_the_far_ones_are_zero(engine):
    """All ReLU features are 0 and near scores are −600: the window decides, not 0/0."""
    n = 30
    q, k = np.full((2, 1, n, 4), 10.0, dtype=np.float32)
    k[:] = -30
    v = np.random.default_rng(0).standard_normal((1, n, 3)).astype(np.float32)
    out = kt.linear_attention(
        q, k, v, "relu", causal=True, window=4, far=kt.Far(0.0, False), engine=engine
    )
    np.testing.assert_allclose(out[0, 20], v[0, 17:21].mean(axis=0), rtol=1e-5)


@pytest.mark.parametrize("text", [*SOME, "softmax"])
def test_the_default_gain_makes_the_unit_of_the_map_a_weight_of_1(text):
    q, k, v = inputs(30)
    options = {"causal": True, "window": 3, "on_zero": "nan"}
    gain = -np.log(maps.get(text).unit(4))
    given = kt.linear_attention(q, k, v, text, far=gain, **options)
    assert same_bits(kt.linear_attention(q, k, v, text, **options), given)
    relative = kt.linear_attention(q, k, v, text, far=kt.Far(0.0, relative=True), **options)
    default = kt.linear_attention(q, k, v, text, far=kt.Far(relative=True), **options)
    assert same_bits(default, relative)


@pytest.mark.parametrize("text", ["elu", "exp", "hedgehog", "hedgehog:activation=exp",
                                  "hedgehog:separate=true", "t2r:features=12", "taylor:order=2"])  # fmt: skip
def test_the_unit_is_the_size_of_similarities(text):
    """Within a factor of 2 of the median similarity of standard normal queries and keys."""
    feature_map = maps.get(text)
    x, y = (
        np.random.default_rng(1).standard_normal((2, 200, 16))
        * feature_map.default_scale(16) ** 0.5
    )
    ratio = np.median(feature_map.kernel(x, y)) / feature_map.unit(16)
    assert 0.5 < ratio < 2


def test_a_function_has_a_unit_too():
    q, k, v = inputs(30)
    options = {"causal": True, "window": 3}
    out = kt.linear_attention(
        q, k, v, lambda x: np.exp(np.minimum(x, 0)) + np.maximum(x, 0), **options
    )
    np.testing.assert_allclose(out, kt.linear_attention(q, k, v, "elu", **options), rtol=1e-10)


class TestDial:
    def test_text_and_keywords_mean_the_same(self):
        q, k, v = inputs(30)
        text = "elu@window=4,sinks=1,gain=-2,relative"
        keywords = {"window": 4, "sinks": 1, "far": kt.Far(-2.0, relative=True)}
        for causal in (False, True):
            want = kt.linear_attention(q, k, v, "elu", causal=causal, **keywords)
            assert same_bits(kt.linear_attention(q, k, v, text, causal=causal), want)
            dial = kt.Dial.get(text)
            assert same_bits(kt.linear_attention(q, k, v, dial, causal=causal), want)

    @pytest.mark.parametrize(
        "text",
        [
            "elu", "elu@window=16", "softmax@window=16,sinks=1", "elu@sinks=4",
            "hedgehog:activation=exp@window=16,sinks=1,gain=-4,relative",
            "favor:features=8@window=2,relative",
        ],
    )  # fmt: skip
    def test_text_form_gives_the_dial_back(self, text):
        assert str(kt.Dial.get(text)) == text

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("elu@widnow=3", "did you mean 'window'"),
            ("elu@window=3.5", "window to be a whole number, or one for each head, .* not '3.5'"),
            ("elu@window=-1", "window to be a whole number ≥ 0"),
            ("elu@window=3,gain=much", "gain to be a number, not 'much'"),
            ("elu@window=3,window=4", "gives window twice"),
            ("elu@absolute", "'elu@absolute': expected key=value after '@', got 'absolute'"),
            ("elu@relatve=1", "did you mean 'relative'"),
            ("elu@", "'elu@': nothing follows '@'"),
            ("elu@gain=1", "give window or sinks"),
            ("elo@window=3", "did you mean 'elu'"),
        ],
    )
    def test_wrong_texts_are_refused_by_name(self, text, message):
        with pytest.raises(ValueError, match=message):
            kt.Dial.get(text)

    def test_a_window_is_not_given_twice(self):
        q, k, v = inputs(5)
        with pytest.raises(ValueError, match="window twice"):
            kt.linear_attention(q, k, v, "elu@window=3", window=3)

    def test_a_map_alone_has_no_window(self):
        with pytest.raises(ValueError, match="the map alone is 'elu'"):
            maps.get("elu@window=3")


x = np.ones((2, 10, 4))
BAD_CALLS = {
    "negative window": ({"window": -1}, ValueError, "window to be a whole number ≥ 0, not -1"),
    "fractional window": ({"window": 2.5}, ValueError, "window to be a whole number ≥ 0, not 2.5"),
    "window as truth": ({"window": True}, ValueError, "window to be a whole number"),
    "negative sinks": ({"sinks": -2}, ValueError, "sinks to be a whole number ≥ 0, not -2"),
    "fractional sinks": ({"sinks": 0.5}, ValueError, "sinks to be a whole number"),
    "far without a window": ({"far": 1.0}, ValueError, "without window or sinks every"),
    "decay beside a window": (
        {"window": 2, "causal": True, "log_decay": -0.1}, ValueError, "log_decay cannot be combined",
    ),
    "gain of a wrong shape": (
        {"window": 2, "far": np.zeros(3)}, ValueError, r"each of the 2 query heads, not an array \(3,\)",
    ),
    "gain that is whole": ({"window": 2, "far": np.zeros(2, int)}, TypeError, "floating-point gain"),
    "infinite gain": ({"window": 2, "far": np.array([0, np.inf])}, ValueError, "finite gain"),
    "gain as text": ({"window": 2, "far": "much"}, TypeError, "far must be a number, .* not str"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_calls_say_what_was_expected(case):
    options, error, message = BAD_CALLS[case]
    with pytest.raises(error, match=message):
        kt.linear_attention(x, x, x, "elu", **options)
    with pytest.raises(error, match=message):
        kt.attention_weights(x, x, "elu", **options)


def test_a_window_needs_queries_beside_keys():
    with pytest.raises(ValueError, match=r"as many queries as keys, .*5 and 10"):
        kt.linear_attention(x[:, :5], x, x, "elu", window=4)


def test_units_are_checked():
    with pytest.raises(TypeError, match="relative to be True or False"):
        kt.Far(0.0, "yes")
    with pytest.raises(TypeError, match="gain to be a number or an array"):
        kt.Far("much")
