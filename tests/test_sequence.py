"""The short convolution and the selective scan: every engine against the loop over tokens."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_cases import each_isa
from oracle import same_bits
from sequence_cases import convolution_case, expected, run, scan_case, tokens_case

import kerneltrick as kt

ENGINES = {
    "short_convolution": ["native", "direct"],
    "selective_scan": ["native", "chunked", "recurrent"],
}
BOTH = [(operator, engine) for operator, engines in ENGINES.items() for engine in engines]
OPTIONS = {
    "short_convolution": {"activation": "silu"},
    "selective_scan": {"dt_softplus": True},
}


def case(operator, rng, lead, n, channels, size, **options):
    make = convolution_case if operator == "short_convolution" else scan_case
    return make(rng, lead, n, channels, size, **options)


def turned(x):
    """The same array with tokens next to each other in memory, as (batch, channels, n) has them."""
    return np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) if x.ndim > 1 else x


def close(found, wanted, dtype):
    size = 1 + np.abs(wanted).max(initial=0)
    np.testing.assert_allclose(found, wanted, rtol=0, atol=size * 16 * np.finfo(dtype).eps)


@pytest.mark.parametrize(("operator", "engine"), BOTH)
@given(data=st.data())
def test_engines_agree_with_the_loop_over_tokens(operator, engine, data):
    seed = data.draw(st.integers(0, 2**32), label="seed")
    rng = np.random.default_rng(seed)
    lead = data.draw(st.sampled_from([(), (1,), (3,), (2, 2)]), label="lead")
    n = data.draw(st.sampled_from([0, 1, 2, 5, 31, 33, 65, 70]), label="n")
    channels = data.draw(st.sampled_from([1, 3, 8, 9, 65]), label="channels")
    size = data.draw(st.integers(1, 9), label="taps or N")
    dtype = data.draw(st.sampled_from([np.float32, np.float64]), label="dtype")
    layout = data.draw(st.sampled_from([np.asarray, turned]), label="layout")
    extras, state, masked, packed, plain = (data.draw(st.booleans()) for _ in range(5))
    options = {} if plain else OPTIONS[operator]
    more = {"bias": extras} if operator == "short_convolution" else {"extras": extras}
    if operator == "selective_scan":
        more["signed"] = not plain
    arrays = case(operator, rng, lead, n, channels, size, state=state, **more)
    arrays = {name: layout(x.astype(dtype)) for name, x in arrays.items()}
    tokens = tokens_case(rng, lead, n, masked, packed)
    found = run(operator, arrays, engine=engine, **tokens, **options)
    wide = {name: x.astype(np.float64) for name, x in arrays.items()}
    for made, wanted in zip(found, expected(operator, wide, tokens, **options), strict=True):
        assert made.shape == wanted.shape
        assert made.dtype == dtype
        close(made, wanted, dtype)


@pytest.mark.parametrize("operator", ENGINES)
def test_every_instruction_set_agrees(operator, monkeypatch):
    rng = np.random.default_rng(0)
    arrays = case(operator, rng, (2,), 70, 67, 5)
    tokens = tokens_case(rng, (2,), 70, True, True)
    wanted = expected(operator, arrays, tokens, **OPTIONS[operator])
    for _ in each_isa(monkeypatch):
        found = run(operator, arrays, engine="native", **tokens, **OPTIONS[operator])
        for made, want in zip(found, wanted, strict=True):
            close(made, want, np.float64)


@pytest.mark.parametrize("operator", ENGINES)
def test_results_do_not_depend_on_batch_and_threads(operator, two_threads):
    rng = np.random.default_rng(3)
    arrays = case(operator, rng, (3,), 70, 150, 4)
    tokens = tokens_case(rng, (3,), 70, True, True)
    batch = run(operator, arrays, engine="native", **tokens, **OPTIONS[operator])
    kt.set_num_threads(1)
    shared = ("weight", "bias", "A", "D", "dt_bias")
    for i in range(3):
        alone = {k: x if k in shared else x[i] for k, x in arrays.items()}
        own = {k: x[i] for k, x in tokens.items()}
        found = run(operator, alone, engine="native", **own, **OPTIONS[operator])
        for one, all_of_them in zip(found, batch, strict=True):
            assert same_bits(one, all_of_them[i])


@pytest.mark.parametrize(("operator", "engine"), BOTH)
def test_nan_reaches_what_depends_on_it_and_nothing_else(operator, engine):
    rng = np.random.default_rng(4)
    arrays = case(operator, rng, (), 50, 20, 4)
    arrays["x"][20, 3] = arrays["x"][38, 5] = np.nan
    segments = np.arange(50) >= 40
    found, state = run(operator, arrays, segment_ids=segments.astype(int), engine=engine)
    wanted = np.zeros((50, 20), bool)
    wanted[20 : 24 if operator == "short_convolution" else 40, 3] = True
    wanted[38:40, 5] = True
    assert (np.isnan(found) == wanted).all()
    assert not np.isnan(state).any()
    mask = np.ones(50, bool)
    mask[[20, 38]] = False
    found, _ = run(operator, arrays, engine=engine, mask=mask)
    assert not np.isnan(found).any()
    assert (found[[20, 38]] == 0).all()


@pytest.mark.parametrize("name", ["dt", "A", "B", "C", "D", "z", "dt_bias"])
def test_nan_in_other_arguments_of_the_scan_is_kept(name):
    arrays = scan_case(np.random.default_rng(5), (), 50, 20, 4)
    arrays[name][(7, 2) if name in ("A", "B", "C") else (7,) * arrays[name].ndim] = np.nan
    wanted = np.zeros((50, 20), bool)
    rows = {"dt": slice(7, None), "B": slice(7, None), "C": 7, "z": 7}.get(name, slice(None))
    wanted[rows, slice(None) if name in ("B", "C") else 7] = True
    for engine in ENGINES["selective_scan"]:
        found, _ = run("selective_scan", arrays, engine=engine, dt_softplus=True)
        assert (np.isnan(found) == wanted).all(), engine


def test_fast_decays_and_large_steps_do_not_overflow():
    arrays = scan_case(np.random.default_rng(6), (), 40, 9, 3)
    arrays["A"] *= 1e6
    arrays["dt"] = 1e3 * arrays["dt"]
    arrays = {name: x.astype(np.float32) for name, x in arrays.items()}
    wide = {name: x.astype(np.float64) for name, x in arrays.items()}
    wanted = expected("selective_scan", wide, {})
    for found, want in zip(run("selective_scan", arrays), wanted, strict=True):
        np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-3)


@pytest.mark.parametrize(("operator", "engine"), BOTH)
def test_inplace_alone_overwrites_the_state(operator, engine):
    for n, size in ((0, 4), (1, 1), (1, 4), (3, 4)):
        overwrite(operator, engine, n, size)


def overwrite(operator, engine, n, size):
    arrays = case(operator, np.random.default_rng(7), (2,), n, 20, size)
    kept = arrays["state"].copy()
    wanted, after = run(operator, arrays, engine=engine)
    assert not np.shares_memory(after, arrays["state"])
    assert same_bits(arrays["state"], kept)
    found = getattr(kt, operator)(**arrays, inplace=True, engine=engine)
    assert same_bits(found, wanted)
    assert same_bits(arrays["state"], after)
    assert n == 0 or not kept.size or not same_bits(kept, after)


def test_inplace_overwrites_a_state_with_strides_and_of_another_type():
    arrays = convolution_case(np.random.default_rng(8), (2,), 1, 20, 4)
    wanted, after = run("short_convolution", arrays)
    held = np.zeros((2, 20, 4))  # as transformers keeps it
    held[..., 1:] = arrays["state"].swapaxes(-1, -2)
    arrays["state"] = held[..., 1:].swapaxes(-1, -2)
    assert same_bits(kt.short_convolution(**arrays, inplace=True), wanted)
    assert same_bits(held[..., 1:], np.ascontiguousarray(after.swapaxes(-1, -2)))
    arrays = scan_case(np.random.default_rng(9), (2,), 1, 20, 4)
    _, after = run("selective_scan", arrays)
    arrays["state"] = arrays["state"].astype(np.float32)
    kt.selective_scan(**arrays, inplace=True)
    np.testing.assert_allclose(arrays["state"], after, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("operator", ENGINES)
def test_a_state_that_is_read_only_or_shares_its_memory_is_not_overwritten(operator):
    arrays = case(operator, np.random.default_rng(10), (2,), 1, 20, 4)
    state = arrays["state"]
    fixed, shared = state.copy(), np.broadcast_to(state[:1], state.shape)
    fixed.flags.writeable = False
    same = np.lib.stride_tricks.as_strided(state, state.shape, (0, *state.strides[1:]))
    for wrong in (fixed, shared, same):
        kept = wrong.copy()
        with pytest.raises(ValueError, match=r"cannot overwrite a state .* give a copy of it"):
            getattr(kt, operator)(**arrays | {"state": wrong}, inplace=True)
        assert same_bits(wrong, kept)


X, W = np.ones((5, 3)), np.ones((3, 4))


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"x": X.astype(int)}, TypeError, "x has dtype int64; cast it"),
        ({"x": X[0]}, ValueError, r"needs x \(..., n, width\), not \(3,\)"),
        ({"weight": W[None]}, ValueError, r"weight\[:, 0\]"),
        ({"weight": W[:2]}, ValueError, r"weight \(channels, taps\)"),
        ({"weight": W[:, :0]}, ValueError, r"weight \(channels, taps\)"),
        ({"bias": np.ones(4)}, ValueError, r"needs bias \(3,\), not \(4,\)"),
        ({"activation": "gelu"}, ValueError, "activation must be"),
        ({"state": np.ones((4, 3))}, ValueError, r"needs state \(3, 3\).*return_state=True"),
        ({"mask": np.ones(5)}, TypeError, "mask must be boolean"),
        ({"mask": np.ones(4, bool)}, ValueError, "mask must have one entry per token"),
        ({"segment_ids": np.ones(5)}, TypeError, "segment_ids must be whole numbers"),
        ({"inplace": True}, ValueError, "needs a state to overwrite"),
        ({"engine": "fast"}, ValueError, "unknown engine 'fast'; use auto, native, direct"),
        ({"x": [1.0]}, TypeError, "x must be an array"),
    ],
)
def test_short_convolution_says_what_is_wrong(change, error, match):
    with pytest.raises(error, match=match):
        kt.short_convolution(**{"x": X, "weight": W, **change})


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"dt": X[:, :2]}, ValueError, r"needs dt \(5, 3\)"),
        ({"A": W[0]}, ValueError, r"needs A \(channels, N\)"),
        ({"A": W[:, :0]}, ValueError, r"needs A \(channels, N\)"),
        ({"B": np.ones((5, 3))}, ValueError, r"needs B \(5, 4\)"),
        ({"C": np.ones((4, 4))}, ValueError, r"needs C \(5, 4\)"),
        ({"z": X[:4]}, ValueError, r"needs z \(5, 3\)"),
        ({"D": W}, ValueError, r"needs D \(3,\)"),
        ({"dt_bias": np.ones(3, int)}, TypeError, "dt_bias has dtype int64"),
        ({"dt": X.astype(np.float32)}, TypeError, "arrays of one dtype"),
        ({"state": np.ones((4, 3))}, ValueError, r"needs state \(3, 4\)"),
        ({"engine": "direct"}, ValueError, "use auto, native, chunked, recurrent"),
    ],
)
def test_selective_scan_says_what_is_wrong(change, error, match):
    good = {"x": X, "dt": X, "A": -W, "B": np.ones((5, 4)), "C": np.ones((5, 4))}
    with pytest.raises(error, match=match):
        kt.selective_scan(**{**good, **change})
