"""A decoder with a window or sinks gives the outputs and states of a batch, token by token."""

import copy

import numpy as np
import pytest
from native_cases import ISAS, each_isa
from oracle import MAPS, turns

import kerneltrick as kt
from kerneltrick import maps
from kerneltrick.engines import core

SHAPE, D, WIDTH = (2, 3), 5, 9
SIZES = {"shape": SHAPE, "d": D, "value_width": WIDTH}
DIALS = [(0, 3), (1, 0), (2, 1), (5, 0), (5, 4), (7, 9), (80, 2)]


@pytest.fixture(autouse=True)
def compiled():
    if core() is None:
        pytest.skip("kerneltrick was installed without its compiled core")


def tokens(n, groups=1, dtype="float64", seed=0):
    """q, k and v of n tokens, on axis −2."""
    rng = np.random.default_rng([seed, n])
    lead, heads = SHAPE[:-1], SHAPE[-1]
    shapes = ((*lead, heads * groups, n, D), (*SHAPE, n, D), (*SHAPE, n, WIDTH))
    return [rng.standard_normal(x).astype(dtype) for x in shapes]


def steps(decoder, arrays, first=0, last=None):
    assert decoder.compiled
    n = range(arrays[0].shape[-2])[first:last]
    return np.stack([decoder.step(*(x[..., t, :] for x in arrays)) for t in n], axis=-2)


def batch(arrays, text, state=None, **options):
    return kt.linear_attention(
        *arrays, text, causal=True, state=state, return_state=True, engine="dense", **options
    )


def same_state(mine, theirs, rtol=1e-9):
    assert (mine.start, mine.stop) == (theirs.start, theirs.stop)
    assert mine.fingerprint == theirs.fingerprint
    for a, b in zip(mine.near, theirs.near, strict=True):
        a, b = (np.where(s.near.keep, x, 0) for s, x in ((mine, a), (theirs, b)))
        np.testing.assert_array_equal(a, b)
        assert a.dtype == b.dtype
    scale = [np.exp(x.log_scale)[..., None, None] for x in (mine, theirs)]
    np.testing.assert_allclose(mine.U * scale[0], theirs.U * scale[1], rtol=rtol, atol=rtol)
    np.testing.assert_allclose(mine.Z * scale[0][..., 0], theirs.Z * scale[1][..., 0], rtol=rtol)


@pytest.mark.parametrize("text", [*MAPS, "softmax"])
def test_every_map_steps_as_the_batch(text, monkeypatch):
    if maps.fused(maps.get(text)) is None:
        pytest.skip("the core does not know this map, so its steps are recurrent")
    arrays = tokens(20, groups=2)
    number = [*MAPS, "softmax"].index(text)
    for normalize, isa, relative in turns(number, [True, False], ISAS, [False, True]):
        monkeypatch.setenv("KERNELTRICK_ISA", isa)
        options = {"window": 4, "sinks": 2, "normalize": normalize}
        options["far"] = kt.Far(np.linspace(-1, 1, 6), relative)
        want, after = batch(arrays, text, on_zero="nan", **options)
        decoder = kt.Decoder(text, groups=2, dtype="float64", on_zero="nan", **SIZES, **options)
        np.testing.assert_allclose(steps(decoder, arrays), want, rtol=1e-9, atol=1e-12)
        same_state(decoder.snapshot(), after)


@pytest.mark.parametrize(("window", "sinks"), DIALS)
def test_any_window_goes_on_from_any_prompt(window, sinks):
    arrays = tokens(90)
    options = {"window": window, "sinks": sinks}
    texts = ["elu", "cosformer:horizon=99", "favor:features=8", "softmax"]
    for first, text in turns(DIALS.index((window, sinks)), (0, 1, 4, 5, 6, 83), texts):
        n = first + 7
        want, after = batch([x[..., :n, :] for x in arrays], text, **options)
        state = None
        if first:
            state = batch([x[..., :first, :] for x in arrays], text, **options)[1]
        decoder = kt.Decoder(text, dtype="float64", state=state, **SIZES, **options)
        out = steps(decoder, arrays, first, n)
        np.testing.assert_allclose(out, want[..., first:, :], rtol=1e-9, atol=1e-12)
        same_state(decoder.snapshot(), after)


@pytest.mark.parametrize("text", ["softmax", "elu@window=1000,sinks=1"])
def test_a_long_window_takes_room_as_tokens_come(text):
    arrays = tokens(200)
    decoder = kt.Decoder(text, dtype="float64", **SIZES)
    before = decoder.nbytes
    want, after = batch(arrays, text)
    np.testing.assert_allclose(steps(decoder, arrays), want, rtol=1e-9, atol=1e-12)
    same_state(decoder.snapshot(), after)
    assert before < decoder.nbytes < 3 * 200 * 6 * (D + WIDTH) * 8


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("text", ["softmax", "elu@window=70,sinks=2"])
def test_queries_that_share_keys_get_what_each_would_get_alone(text, dtype, monkeypatch):
    for _ in each_isa(monkeypatch):
        share_keys(text, dtype)


def share_keys(text, dtype):
    q, k, v = tokens(150, groups=3, dtype=dtype)
    whole = steps(kt.Decoder(text, groups=3, dtype=dtype, **SIZES), (q, k, v))
    for group in range(3):
        own = q[:, group::3]
        alone = steps(kt.Decoder(text, dtype=dtype, **SIZES), (own, k, v))
        np.testing.assert_array_equal(whole[:, group::3], alone)


@pytest.mark.parametrize("score", [0, 97])
@pytest.mark.parametrize("first", [True, False])
def test_values_whose_weight_vanishes_leave_no_trace_however_large(first, score):
    """Their sum overflows, in another part of the window than the tokens that matter."""
    n = 2400
    k, v = np.full((1, n, 4), score, np.float32), np.full((1, n, 4), 1e38, np.float32)
    matter = slice(0, 50) if first else slice(n - 50, n)
    k[:, matter], v[:, matter] = 100, 1
    decoder = kt.Decoder("softmax", shape=(1,), d=4)
    for t in range(n):
        out = decoder.step(np.full((1, 4), 25, np.float32), k[:, t], v[:, t])
    np.testing.assert_array_equal(out, 1)


def test_rows_may_have_seen_different_numbers_of_tokens():
    """With a masked prompt and packed segments, each row has its own count and ring buffer."""
    arrays = tokens(30)
    rng = np.random.default_rng(3)
    mask = rng.random((*SHAPE, 30)) < 0.6
    mask[..., 20:] = True
    ids = np.sort(rng.integers(0, 3, (2, 20)), axis=-1)
    options = {"window": 6, "sinks": 2}
    prompt = [x[..., :20, :] for x in arrays]
    state = batch(prompt, "elu", mask=mask[..., :20], segment_ids=ids, **options)[1]
    want, after = batch([x[..., 20:, :] for x in arrays], "elu", state=state, **options)
    decoder = kt.Decoder("elu", dtype="float64", state=state, **SIZES, **options)
    np.testing.assert_allclose(steps(decoder, arrays, 20), want, rtol=1e-9)
    same_state(decoder.snapshot(), after)


@pytest.mark.parametrize("poison", [np.nan, np.inf])
@pytest.mark.parametrize("text", ["elu", "favor:features=8", "softmax"])
def test_nan_and_inf_spoil_what_they_spoil_in_the_batch(text, poison):
    arrays = tokens(24)
    q, k, v = arrays
    q[0, 1, 3, 2] = k[1, 0, 6, 1] = v[0, 2, 5, 4] = v[1, 2, 1, 3] = poison
    for window, sinks in ((4, 0), (3, 2)):
        options = {"window": window, "sinks": sinks}
        want, _ = batch(arrays, text, on_zero="nan", **options)
        decoder = kt.Decoder(text, dtype="float64", on_zero="nan", **SIZES, **options)
        out = steps(decoder, arrays)
        assert np.isnan(out).any()
        np.testing.assert_allclose(out, want, rtol=1e-9)
        again = kt.Decoder(
            text, dtype="float64", on_zero="nan", state=decoder.snapshot(), **SIZES, **options
        )
        later = tokens(3, seed=5)
        np.testing.assert_array_equal(steps(again, later), steps(decoder, later))


def test_copies_and_files_go_on_by_themselves(tmp_path):
    arrays = tokens(40)
    options = {"window": 6, "sinks": 2, "dtype": "float64"}
    decoder = kt.Decoder("elu", **SIZES, **options)
    steps(decoder, arrays, 0, 20)
    decoder.snapshot().save(tmp_path / "state")
    loaded = kt.Decoder("elu", state=kt.State.load(tmp_path / "state"), **SIZES, **options)
    copies = [copy.copy(decoder), copy.deepcopy(decoder), loaded]
    steps(decoder, tokens(9, seed=4))
    want, _ = batch(arrays, "elu", window=6, sinks=2)
    for one in copies:
        np.testing.assert_allclose(steps(one, arrays, 20), want[..., 20:, :], rtol=1e-9)


def test_a_stream_is_bit_equal_alone_and_with_any_threads(isa):
    arrays = tokens(25, dtype="float32")
    options = {"window": 8, "sinks": 1, "d": D, "value_width": WIDTH}
    want = steps(kt.Decoder("elu", shape=SHAPE, **options), arrays)
    for count in (1, 3):
        kt.set_num_threads(count)
        out = steps(kt.Decoder("elu", shape=SHAPE, **options), arrays)
        np.testing.assert_array_equal(out, want)
    kt.set_num_threads(None)
    alone = steps(kt.Decoder("elu", shape=(3,), **options), [x[1] for x in arrays])
    np.testing.assert_array_equal(alone, want[1])
