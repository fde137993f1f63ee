"""No output depends on the future, on padding, or on the rest of the batch, to the bit."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import DECAYS, MAPS, keeps, make_decay, same_bits, turns

import kerneltrick as kt
from kerneltrick import maps

ENGINES = ["dense", "recurrent", "chunked", "native"]
CHANGES = {
    "scaled": lambda x: x * np.asarray(1e4, x.dtype),
    "nan": lambda x: np.full_like(x, np.nan),
    "inf": lambda x: np.full_like(x, np.inf),
    "minus inf": lambda x: np.full_like(x, -np.inf),
}


def inputs(n, dtype=np.float32, seed=0, d=6, lead=(2,)):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((*lead, n, w)).astype(dtype) for w in (d, d, 5)]


# Engines with chunks are tested at the edges of chunks, the others at any token.
CUTS = {"dense": (60, 1, 50), "recurrent": (20, 1, 15)}


@pytest.mark.parametrize("text", MAPS)
def test_past_is_bit_identical_when_the_future_changes(text):
    for engine, normalize in turns(text, ENGINES, [True, False]):
        n, *cuts = CUTS.get(engine, (150, 1, 50, 64, 127))
        options = {"causal": True, "on_zero": "zero", "engine": engine, "normalize": normalize}

        def run(q, k, v, options=options):
            return kt.linear_attention(q, k, v, text, **options)

        arrays = [x[None] for x in inputs(n)]
        keeps(["past keeps its bits"], run, "linear_attention", arrays, cuts)
        keeps(["NaN stays where it depends"], run, "linear_attention", arrays, cuts[1:])


@pytest.mark.parametrize("kind", DECAYS[1:])
def test_past_is_bit_identical_with_decay_and_segments(kind):
    n = 100
    q, k, v = inputs(n)
    rng = np.random.default_rng(1)
    for engine, text in turns(DECAYS.index(kind), ENGINES, ["elu", "favor:features=16"]):
        decay = make_decay(kind, rng, k, maps.get(text).dim(6))
        ids = np.sort(rng.integers(0, 4, n))
        if isinstance(decay, np.ndarray):
            decay = decay.astype(np.float32)
        options = {"causal": True, "engine": engine, "log_decay": decay, "segment_ids": ids}
        options["on_zero"] = "nan"
        before = kt.linear_attention(q, k, v, text, **options)
        for change in CHANGES.values():
            future = [x.copy() for x in (q, k, v)]
            for x in future:
                x[:, 70:] = change(x[:, 70:])
            with np.errstate(all="ignore"):
                after = kt.linear_attention(*future, text, **options)
            assert same_bits(before[:, :70], after[:, :70]), engine


@pytest.mark.parametrize("text", MAPS)
def test_length_does_not_change_earlier_outputs(text):
    for engine in ENGINES:
        n, cut = (20, 9) if engine == "recurrent" else (200, 77)
        options = {"causal": True, "on_zero": "nan", "engine": engine}
        arrays = inputs(n)
        long = kt.linear_attention(*arrays, text, **options)[:, :cut]
        short = kt.linear_attention(*(x[:, :cut] for x in arrays), text, **options)
        if engine == "dense":  # a matrix product of another size, so equal to rounding only
            np.testing.assert_allclose(long, short, rtol=2e-3, atol=2e-5)
        else:
            assert same_bits(long, short), engine


class TestPads:
    @pytest.mark.parametrize("text", MAPS)
    def test_contents_of_pads_change_no_bit(self, text):
        for engine, causal in turns(text, ENGINES, [False, True]):
            n = 20 if engine == "recurrent" else 100
            q, k, v = inputs(n)
            mask = np.random.default_rng(2).random((2, n)) > 0.3
            options = {"causal": causal, "mask": mask, "on_zero": "nan", "engine": engine}
            if causal:
                options["log_decay"] = np.full((2, n), np.float32(-0.1))
            else:
                options["query_mask"] = mask
            expected, state = kt.linear_attention(q, k, v, text, return_state=True, **options)
            for filler in map(np.float32, (0.0, 1e4, np.nan, np.inf)):
                padded = [np.where(mask[..., None], x, filler) for x in (q, k, v)]
                if causal:
                    options["log_decay"] = np.where(mask, np.float32(-0.1), filler)
                out, after = kt.linear_attention(*padded, text, return_state=True, **options)
                assert same_bits(out, expected), engine
                assert same_bits(after.U, state.U), engine
                assert same_bits(after.Z, state.Z), engine
                assert (out[~mask] == 0).all(), engine

    @pytest.mark.parametrize("engine", ["recurrent", "chunked", "native"])
    @given(
        text=st.sampled_from(MAPS),
        n=st.integers(1, 130),
        extra=st.integers(1, 130),
        seed=st.integers(0, 1000),
    )
    def test_right_padding_is_bit_equal_to_no_padding(self, text, engine, n, extra, seed):
        if engine == "recurrent":
            n, extra = 1 + n % 20, 1 + extra % 10
        q, k, v = inputs(n + extra, seed=seed)
        mask = np.arange(n + extra) < n
        padded, state = kt.linear_attention(
            q, k, v, text, causal=True, mask=mask, on_zero="nan", engine=engine, return_state=True
        )
        plain, own = kt.linear_attention(
            *(x[:, :n] for x in (q, k, v)), text, causal=True, on_zero="nan", engine=engine,
            return_state=True,
        )  # fmt: skip
        assert same_bits(padded[:, :n], plain)
        assert same_bits(state.U, own.U)

    @pytest.mark.parametrize("text", ["elu", "favor:features=16", "taylor:order=2"])
    def test_full_right_padding_is_bit_equal_to_no_padding(self, text):
        q, k, v = inputs(150)
        mask = np.arange(150) < 90
        padded = kt.linear_attention(q, k, v, text, mask=mask, query_mask=mask)
        plain = kt.linear_attention(*(x[:, :90] for x in (q, k, v)), text)
        assert same_bits(padded[:, :90], plain)

    @pytest.mark.parametrize("engine", ENGINES)
    def test_left_and_interior_pads_agree_with_leaving_them_out(self, engine):
        n = 90
        q, k, v = inputs(n, np.float64)
        rng = np.random.default_rng(3)
        for text, decay in turns(0, ["elu", "relu", "favor:features=16", "exp"], [None, -0.1]):
            for mask in (np.arange(n) >= 40, rng.random(n) > 0.5):
                options = {"causal": True, "engine": engine, "on_zero": "nan", "log_decay": decay}
                out = kt.linear_attention(q, k, v, text, mask=mask, **options)
                left_out = kt.linear_attention(*(x[:, mask] for x in (q, k, v)), text, **options)
                np.testing.assert_allclose(out[:, mask], left_out, rtol=1e-11, atol=1e-13)

    def test_mask_without_heads_and_with_heads(self):
        q, k, v = inputs(30, np.float64, lead=(3, 2))
        one = np.arange(30) % 3 > 0
        out = kt.linear_attention(q, k, v, causal=True, mask=one)
        for shape in ((3, 30), (3, 2, 30)):
            again = kt.linear_attention(q, k, v, causal=True, mask=np.broadcast_to(one, shape))
            assert same_bits(out, again)


@pytest.mark.parametrize("text", MAPS)
def test_a_batch_of_one_is_bit_equal_to_its_row_in_a_batch(text):
    dtypes = [np.float32, np.float16, np.float64]
    for engine, causal, dtype in turns(text, ENGINES, [True, False], dtypes):
        options = {"causal": causal, "on_zero": "nan", "engine": engine}

        def run(q, k, v, options=options):
            return kt.linear_attention(q, k, v, text, **options)

        arrays = inputs(15 if engine == "recurrent" else 75, dtype, lead=(3, 2))
        keeps(["batch of one = batch of many"], run, "linear_attention", arrays)
