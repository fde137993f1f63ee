"""A decoder gives the outputs of linear_attention token by token, and its state is a State."""

import copy
import os
import pickle
import subprocess
import sys
import textwrap
import threading

import numpy as np
import pytest
from native_cases import ISAS, each_isa
from oracle import MAPS, SIGNED_FEATURES, decays_of_any_size, same_bits, turns

import kerneltrick as kt
from kerneltrick import maps
from kerneltrick.engines import core

D, WIDTH, N = 5, 3, 12


@pytest.fixture(params=[True, False], ids=["compiled", "recurrent"])
def compiled(request, monkeypatch):
    """Take steps with the core, and with the recurrent engine as if the core were missing."""
    if not request.param:
        monkeypatch.setattr("kerneltrick.attention._decode.decoder", lambda *_: None)
    elif core() is None:
        pytest.skip("kerneltrick was installed without its compiled core")
    return request.param


def tokens(n=N, shape=(2, 3), groups=1, d=D, width=WIDTH, dtype="float64", seed=0):
    """Return q, k, v with tokens on the first axis, so that one row of each is a step."""
    rng = np.random.default_rng([seed, n, d])
    heads = (*shape[:-1], shape[-1] * groups)
    shapes = ((n, *heads, d), (n, *shape, d), (n, *shape, width))
    return [rng.standard_normal(x).astype(dtype) for x in shapes]


def whole(q, k, v, *arguments, **options):
    """linear_attention of the same tokens, (n, ..., heads, M)."""
    options.setdefault("engine", "recurrent")
    arrays = [np.moveaxis(x, 0, -2) for x in (q, k, v)]
    result = kt.linear_attention(*arrays, *arguments, causal=True, **options)
    if options.get("return_state"):
        return np.moveaxis(result[0], -2, 0), result[1]
    return np.moveaxis(result, -2, 0)


def run(decoder, q, k, v, decays=None):
    steps = [
        decoder.step(q[t], k[t], v[t], *([] if decays is None else [decays[t]]))
        for t in range(len(q))
    ]
    return np.stack(steps)


def same_state(mine, theirs, rtol=1e-11):
    assert (mine.start, mine.stop, mine.fingerprint) == (
        theirs.start, theirs.stop, theirs.fingerprint,
    )  # fmt: skip
    for name in ("U", "Z"):
        a, b = (
            getattr(s, name) * np.exp(s.log_scale)[(..., *(None,) * (2 - (name == "Z")))]
            for s in (mine, theirs)
        )
        size = np.nanmax(np.abs(b), initial=0)
        np.testing.assert_allclose(a, b, rtol=rtol, atol=rtol * size)
    np.testing.assert_allclose(mine.log_decay, theirs.log_decay, rtol=1e-12, atol=1e-12)


def weighted(text, heads):
    rng = np.random.default_rng(heads)
    weight, bias = rng.standard_normal((heads, D, 7)), rng.random(7)
    return {
        "hedgehog per head": maps.Hedgehog(weight),
        "hedgehog keys": maps.Hedgehog(weight[0], "softmax", weight, True),
        "t2r per head": maps.T2R(weight=weight, bias=bias),
        "function": lambda x: x * x + 0.25,
    }.get(text, text)


FEW = ["elu", "favor:features=16", "taylor:order=2", "poly:degree=3"]
EVERY = [*MAPS, "hedgehog per head", "hedgehog keys", "t2r per head", "function"]


@pytest.mark.parametrize("text", EVERY)
def test_steps_equal_linear_attention(text, monkeypatch):
    shape, groups = (2, 3), 2
    feature_map = weighted(text, 3)
    m = maps.get(feature_map).dim(D)
    q, k, v = tokens(groups=groups)
    rng = np.random.default_rng(1)
    for decay, isa, normalize in turns(EVERY.index(text), (0, 1, m), ISAS, [True, False]):
        monkeypatch.setenv("KERNELTRICK_ISA", isa)
        decays = log_decay = None
        if decay:
            decays = decays_of_any_size(rng, (N, *shape) if decay == 1 else (N, *shape, m))
            log_decay = np.moveaxis(decays, 0, 2)
        options = {"normalize": normalize, "on_zero": "zero"}
        expected, end = whole(
            q, k, v, feature_map, log_decay=log_decay, return_state=True, **options
        )
        decoder = kt.Decoder(
            feature_map, shape=shape, d=D, value_width=WIDTH, groups=groups, dtype="float64",
            decay=decay, **options,
        )  # fmt: skip
        out = run(decoder, q, k, v, decays)
        assert out.dtype == np.float64
        size = np.max(np.abs(expected))
        if text in SIGNED_FEATURES and normalize:  # sums that cancel may be anything near 0
            assert np.median(np.abs(out - expected)) <= 1e-10
        else:
            np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-11 * size)
        same_state(decoder.snapshot(), end)


def test_heads_are_needed():
    with pytest.raises(ValueError, match="heads"):
        kt.Decoder("elu", shape=(3, 0), d=D)


def test_value_width_is_that_of_the_keys_unless_told():
    q, k, v = tokens(2, width=D)
    decoder = kt.Decoder("elu", shape=(2, 3), d=D, dtype="float64")
    np.testing.assert_allclose(run(decoder, q, k, v), whole(q, k, v, "elu"), rtol=1e-12)
    assert decoder.nbytes == 2 * 3 * D * (D + 1) * 8
    q, k, v = tokens(2, width=D, dtype="float32")
    assert kt.Decoder(shape=(2, 3), d=D).step(q[0], k[0], v[0]).dtype == np.float32


@pytest.mark.parametrize(
    "text", ["elu", "favor:features=16", "cosformer:horizon=64", "poly:degree=3"]
)
def test_prompt_decoder_snapshot_and_back(text):
    """Read a prompt, decode, take a snapshot, decode both copies, read on: all as in one piece."""
    options = {"normalize": text not in SIGNED_FEATURES, "on_zero": "zero"}
    q, k, v = tokens(40)
    decays = -np.random.default_rng(2).random((40, 2, 3))
    pieces = [(0, 15), (15, 25), (25, 40)]
    expected, end = whole(
        q, k, v, text, log_decay=np.moveaxis(decays, 0, 2), return_state=True, **options
    )

    def read(lo, hi, state):
        return whole(
            q[lo:hi], k[lo:hi], v[lo:hi], text, log_decay=np.moveaxis(decays[lo:hi], 0, 2),
            state=state, return_state=True, engine="auto", **options,
        )  # fmt: skip

    prompt, state = read(*pieces[0], None)
    decoder = kt.Decoder(
        text, shape=(2, 3), d=D, value_width=WIDTH, dtype="float64", decay=1, state=state, **options
    )
    same_state(decoder.snapshot(), state)
    lo, hi = pieces[1]
    steps = run(decoder, q[lo:hi], k[lo:hi], v[lo:hi], decays[lo:hi])
    middle = decoder.snapshot()
    kept = middle.U.copy()
    assert (middle.start, middle.stop) == (0, 25)
    rest, last = read(*pieces[2], middle)
    np.testing.assert_allclose(
        np.concatenate([prompt, steps, rest]), expected, rtol=1e-9, atol=1e-11 * abs(expected).max()
    )
    same_state(last, end)
    # Both continue from the same place, and neither changes the other.
    again = kt.Decoder(
        text,
        shape=(2, 3),
        d=D,
        value_width=WIDTH,
        dtype="float64",
        decay=1,
        state=middle,
        **options,
    )
    lo, hi = pieces[2]
    one = run(decoder, q[lo:hi], k[lo:hi], v[lo:hi], decays[lo:hi])
    two = run(again, q[lo:hi], k[lo:hi], v[lo:hi], decays[lo:hi])
    assert same_bits(one, two)
    np.testing.assert_allclose(one, rest, rtol=1e-9, atol=1e-11 * abs(expected).max())
    assert same_bits(middle.U, kept)
    with pytest.raises(ValueError, match="read-only"):
        middle.sums.hi[...] = 0


@pytest.mark.parametrize("before", [0, 1, "m"])
def test_decays_before_and_after_may_be_of_other_kinds(before, compiled):
    """A prompt decayed by feature and a decoder with one decay for all, and so on."""
    for after in (0, 1, "m"):
        go_on_with_another_decay(before, after)


def go_on_with_another_decay(before, after):
    q, k, v = tokens()
    rng = np.random.default_rng(3)

    def make(kind, n):
        return None if kind == 0 else -rng.random((2, 3, n) if kind == 1 else (2, 3, n, D))

    prompt, rest = make(before, 7), make(after, N - 7)
    _, state = whole(q[:7], k[:7], v[:7], "elu", log_decay=prompt, return_state=True)
    expected, end = whole(
        q[7:], k[7:], v[7:], "elu", log_decay=rest, state=state, return_state=True
    )
    decoder = kt.Decoder(
        "elu", shape=(2, 3), d=D, value_width=WIDTH, dtype="float64", state=state,
        decay=D if after == "m" else after,
    )  # fmt: skip
    decays = None if rest is None else np.moveaxis(rest, 2, 0)
    np.testing.assert_allclose(run(decoder, q[7:], k[7:], v[7:], decays), expected, rtol=1e-11)
    same_state(decoder.snapshot(), end)


def test_decays_may_be_numbers_and_shared(compiled):
    q, k, v = tokens(1)
    made = []
    for decay in (-0.5, np.float32(-0.5), np.full(3, -0.5), np.full((2, 3), -0.5, np.float16)):
        decoder = kt.Decoder("elu", shape=(2, 3), d=D, value_width=WIDTH, dtype="float64", decay=1)
        decoder.step(q[0], k[0], v[0], -0.5)
        made.append(decoder.step(q[0], k[0], v[0], decay))
        assert (decoder.snapshot().log_decay == -1).all()
    assert all(same_bits(x, made[0]) for x in made)
    by_feature = kt.Decoder("elu", shape=(2, 3), d=D, value_width=WIDTH, dtype="float64", decay=D)
    by_feature.step(q[0], k[0], v[0], -0.5)
    np.testing.assert_allclose(by_feature.step(q[0], k[0], v[0], -0.5), made[0], rtol=1e-13)


@pytest.mark.parametrize("text", [*FEW, "relu", "hedgehog"])
def test_nan_and_inf_spoil_what_they_spoil_in_linear_attention(text, monkeypatch):
    """Also in a map whose steps are the recurrent engine's."""
    for name, poison, isa in turns(
        [*FEW, "relu", "hedgehog"].index(text), range(3), [np.nan, np.inf, -np.inf], ISAS
    ):
        monkeypatch.setenv("KERNELTRICK_ISA", isa)
        arrays = tokens()
        arrays[name][5, 1, 2, 1] = poison
        expected, end = whole(*arrays, text, return_state=True, on_zero="zero")
        decoder = kt.Decoder(
            text, shape=(2, 3), d=D, value_width=WIDTH, dtype="float64", on_zero="zero"
        )
        out = run(decoder, *arrays)
        np.testing.assert_array_equal(np.isnan(out), np.isnan(expected))
        np.testing.assert_allclose(out, expected, rtol=1e-9, atol=1e-11)
        snapshot = decoder.snapshot()
        assert np.isnan(snapshot.U).any() == (name > 0)
        np.testing.assert_array_equal(np.isnan(snapshot.U), np.isnan(end.U))
        np.testing.assert_array_equal(np.isnan(snapshot.Z), np.isnan(end.Z))
        # A decoder that continues a spoilt state is spoilt in the same columns.
        again = kt.Decoder(
            text, shape=(2, 3), d=D, value_width=WIDTH, dtype="float64", on_zero="zero", state=end
        )
        later = tokens(1, seed=1)
        np.testing.assert_array_equal(
            np.isnan(run(again, *later)),
            np.isnan(whole(*later, text, state=end, on_zero="zero")),
        )


class TestVanishingNormalizer:
    """With relu and opposite signs, the weights of every query are 0."""

    q, k, v = np.array([[1.0, -1.0]]), np.array([[-1.0, 1.0]]), np.array([[5.0]])

    def decoder(self, **options):
        return kt.Decoder("relu", shape=(1,), d=2, value_width=1, dtype="float64", **options)

    def test_is_reported_and_the_token_counts(self, compiled):
        for options in ({}, {"on_zero": "raise"}, {"on_zero": None}):
            decoder = self.decoder(**options)
            decoder.step(self.k, self.k, self.v)
            with pytest.raises(kt.VanishingNormalizerError, match=r"at token 1 .*relu.*on_zero"):
                decoder.step(self.q, self.k, self.v)
            # The stream continues: the state has the token's key, value and position.
            state = decoder.snapshot()
            assert state.stop == 2
            np.testing.assert_array_equal(state.Z, [[0.0, 2.0]])
            assert decoder.step(self.k, self.k, self.v) == 5
            assert decoder.snapshot().stop == 3

    def test_is_filled_if_asked(self, compiled):
        assert np.isnan(self.decoder(on_zero="nan").step(self.q, self.k, self.v)).all()
        assert self.decoder(on_zero="zero").step(self.q, self.k, self.v) == 0
        assert self.decoder(normalize=False).step(self.q, self.k, self.v) == 0

    def test_is_not_looked_for_where_the_query_is_nan(self, compiled):
        assert np.isnan(self.decoder().step(self.q * np.nan, self.k, self.v)).all()


def test_the_horizon_of_a_map_ends_the_stream(compiled):
    q, k, v = tokens(6, shape=(2,))
    decoder = kt.Decoder(
        "cosformer:horizon=4", shape=(2,), d=D, value_width=WIDTH, dtype="float64", on_zero="zero"
    )
    run(decoder, q[:5], k[:5], v[:5])
    with pytest.raises(ValueError, match="horizon N = 4"):
        decoder.step(q[5], k[5], v[5])
    with pytest.raises(ValueError, match="horizon N = 4"):
        whole(q, k, v, "cosformer:horizon=4", on_zero="zero")


def test_layouts_in_memory_do_not_change_bits(isa):
    q, k, v = (x[0] for x in tokens(1, dtype="float32"))

    def step(*arrays):
        decoder = kt.Decoder("elu", shape=(2, 3), d=D, value_width=WIDTH, decay=1)
        decay = np.full((2, 3), -0.5)
        decoder.step(*arrays, np.asfortranarray(decay))
        return decoder.step(*arrays, decay[::-1])

    expected = step(q, k, v)
    raw = [np.frombuffer(b"\0" + x.tobytes(), np.float32, offset=1) for x in (q, k, v)]
    unaligned = [x.reshape(y.shape) for x, y in zip(raw, (q, k, v), strict=True)]
    assert not unaligned[0].flags.aligned
    assert not unaligned[0].flags.writeable
    for arrays in (
        [np.asfortranarray(x) for x in (q, k, v)],
        [np.ascontiguousarray(x[::-1, ::-1])[::-1, ::-1] for x in (q, k, v)],
        unaligned,
    ):
        assert same_bits(step(*arrays), expected)
    one = [np.broadcast_to(x[:1, :1], x.shape) for x in (q, k, v)]
    assert same_bits(step(*one), step(*map(np.ascontiguousarray, one)))


@pytest.mark.parametrize(("name", "rows"), [("elu", 400), ("softmax", 5)])
def test_a_stream_is_bit_equal_alone_and_in_a_batch_and_with_any_threads(isa, name, rows):
    """Threads take rows with features by the tile, and rows of exact attention one by one."""
    if core() is None:
        pytest.skip("kerneltrick was installed without its compiled core")
    core().wake_always(True)
    try:
        results = []
        q, k, v = tokens(3, (rows,), d=64, width=64, dtype="float32")
        for threads in (1, 2, 3, 8):
            kt.set_num_threads(threads)
            decoder = kt.Decoder(name, shape=(rows,), d=64)
            results.append(run(decoder, q, k, v))
        assert all(same_bits(x, results[0]) for x in results)
        for row in (0, rows // 2, rows - 1):
            alone = kt.Decoder(name, shape=(1,), d=64)
            here = slice(row, row + 1)
            assert same_bits(run(alone, q[:, here], k[:, here], v[:, here]), results[0][:, here])
    finally:
        core().wake_always(False)
        kt.set_num_threads(None)


def test_decoders_in_several_threads_do_not_meet():
    q, k, v = tokens(200, (8,), d=32, width=32)
    expected = run(kt.Decoder("elu", shape=(8,), d=32, dtype="float64"), q, k, v)
    results = []

    def work():
        results.append(run(kt.Decoder("elu", shape=(8,), d=32, dtype="float64"), q, k, v))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert all(same_bits(x, expected) for x in results)


@pytest.mark.parametrize("text", ["elu", "favor:features=16", "poly:degree=3"])
def test_steps_of_one_decoder_exclude_each_other(text):
    """Eight threads take the same step again and again: the state is that of as many in a row.

    In a process of its own, as it was the heap that broke. poly:degree=3 is not compiled.
    """
    code = """
        import sys, threading
        import numpy as np
        import kerneltrick as kt
        sys.setswitchinterval(1e-6)  # threads take turns as often as they can
        text, each, d = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
        rng = np.random.default_rng(0)
        q, k, v = rng.standard_normal((3, 8, d), dtype=np.float32)
        decoder, alone = (kt.Decoder(text, shape=(8,), d=d) for _ in range(2))
        wrong = []
        def work():
            for _ in range(each):
                out = decoder.step(q, k, v)
                if not np.allclose(out, v, atol=1e-5):  # the only value there ever was
                    wrong.append(out)
                state = decoder.snapshot()
                if not np.allclose(state.Z * v[:, :1], state.U[..., 0], rtol=1e-4):
                    wrong.append(state)
        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(8 * each):
            alone.step(q, k, v)
        assert not wrong, len(wrong)
        mine, theirs = decoder.snapshot(), alone.snapshot()
        assert mine.stop == theirs.stop == 8 * each, (mine.stop, theirs.stop)
        assert np.array_equal(mine.U, theirs.U) and np.array_equal(mine.Z, theirs.Z)
    """
    each, d = (20, 8) if text == "poly:degree=3" else (1000, 32)
    command = [sys.executable, "-c", textwrap.dedent(code), text, str(each), str(d)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr or f"ended by signal {-done.returncode}"


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy], ids=["copy", "deepcopy"])
def test_copies_go_on_by_themselves(make, compiled):
    for text in ("elu", "favor:features=16", "poly:degree=3"):
        copies_go_on(text, make)


def copies_go_on(text, make):
    q, k, v = tokens(9)
    options = {"d": D, "value_width": WIDTH, "dtype": "float64", "decay": 1, "scale": 0.5}
    one, whole_ = (kt.Decoder(text, shape=(2, 3), **options) for _ in range(2))
    decays = -np.arange(9.0) / 9
    expected = run(whole_, q, k, v, decays)
    run(one, q[:4], k[:4], v[:4], decays[:4])
    other = make(one)
    np.testing.assert_allclose(
        run(other, q[4:], k[4:], v[4:], decays[4:]), expected[4:], rtol=1e-12
    )
    assert (one.snapshot().stop, other.snapshot().stop) == (4, 9)
    np.testing.assert_allclose(run(one, q[4:], k[4:], v[4:], decays[4:]), expected[4:], rtol=1e-12)


def test_a_decoder_is_not_pickled():
    decoder = kt.Decoder("elu", shape=(2,), d=4)
    with pytest.raises(TypeError, match=r"snapshot\(\)\.save\(path\).*State\.load"):
        pickle.dumps(decoder)


def test_a_decoder_shows_what_it_is():
    decoder = kt.Decoder("favor:features=16", shape=(2, 3), d=4, value_width=5, groups=2)
    q, k, v = tokens(1, (2, 3), 2, 4, 5, "float32")
    decoder.step(q[0], k[0], v[0])
    map_ = decoder.snapshot().fingerprint
    assert repr(decoder) == f"<Decoder of {map_}, tokens 0:1, streams and heads (2, 3) float32>"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
@pytest.mark.filterwarnings("ignore")  # JAX, which other tests import, warns at every fork
def test_a_child_goes_on_by_itself(compiled):
    q, k, v = tokens(4)
    decoder = kt.Decoder("elu", shape=(2, 3), d=D, value_width=WIDTH, dtype="float64")
    run(decoder, q[:2], k[:2], v[:2])
    before = decoder.snapshot()
    expected = run(copy.copy(decoder), q[2:], k[2:], v[2:])
    child = os.fork()
    if child == 0:
        os._exit(0 if same_bits(run(decoder, q[2:], k[2:], v[2:]), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert same_bits(decoder.snapshot().U, before.U)
    assert decoder.snapshot().stop == 2


class TestStabilisedSums:
    """Features that underflow in float32 before they are multiplied must still count in a sum."""

    def test_a_key_far_above_the_others_keeps_its_weight(self):
        """Keys (170, 0) and (0, 0), query (−60, 60): weights e¹¹⁰ + e⁶⁰ and e⁶⁰ + e⁻⁶⁰."""
        decoder = kt.Decoder("exp", shape=(1,), d=2, value_width=1)
        q = np.array([[[0, 0]], [[-60, 60]]], np.float32)
        k = np.array([[[170, 0]], [[0, 0]]], np.float32)
        v = np.array([[[1]], [[2]]], np.float32)
        assert run(decoder, q, k, v).ravel().tolist() == [1, 1]

    @pytest.mark.parametrize("dtype", ["float32", "float16"])
    @pytest.mark.parametrize("text", ["exp", "favor:features=16", "hedgehog:activation=exp"])
    def test_large_queries_and_keys(self, text, dtype, monkeypatch):
        """With norms near 67 the features exceed the range of float32."""
        rng = np.random.default_rng(0)
        q, k, v = (rng.standard_normal((20, 2, 8)) for _ in range(3))
        for x in (q, k):
            x *= 67 / np.linalg.norm(x, axis=-1, keepdims=True)
        arrays = [x.astype(dtype) for x in (q, k, v)]
        expected = whole(*(x.astype("float64") for x in arrays), text, engine="dense", scale=1)
        limit = 1e-5 if dtype == "float32" else 2e-3
        for _ in each_isa(monkeypatch):
            decoder = kt.Decoder(text, shape=(2,), d=8, dtype=dtype, scale=1)
            np.testing.assert_allclose(run(decoder, *arrays), expected, rtol=limit, atol=limit)


class TestLibraries:
    def check(self, convert, back, dtype):
        q, k, v = tokens(dtype=dtype)
        decays = -np.random.default_rng(0).random((N, 2, 3)).astype(dtype)
        plain = kt.Decoder("elu", shape=(2, 3), d=D, value_width=WIDTH, dtype=dtype, decay=1)
        other = kt.Decoder("elu", shape=(2, 3), d=D, value_width=WIDTH, dtype=dtype, decay=1)
        for t in range(N):
            expected = plain.step(q[t], k[t], v[t], decays[t])
            out = other.step(*(convert(x[t]) for x in (q, k, v)), convert(decays[t]))
            assert type(out) is type(convert(q[t]))
            assert str(out.dtype).endswith(dtype)
            assert same_bits(back(out), expected)

    @pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
    def test_torch(self, dtype):
        torch = pytest.importorskip("torch")
        self.check(torch.tensor, lambda x: x.numpy(), dtype)

    @pytest.mark.parametrize("dtype", ["float16", "float32"])
    def test_jax(self, dtype):
        jnp = pytest.importorskip("jax").numpy
        self.check(jnp.asarray, np.asarray, dtype)

    @pytest.mark.parametrize("name", ["float16", "float32", "float64"])
    def test_dtypes_of_any_library(self, name):
        torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
        for dtype in (name, np.dtype(name), *(getattr(x, name) for x in (np, torch, jax.numpy))):
            assert kt.Decoder("elu", shape=(1,), d=2, dtype=dtype).dtype == name
        with pytest.raises(ValueError, match=r"not torch\.int8"):
            kt.Decoder("elu", shape=(1,), d=2, dtype=torch.int8)

    def test_bfloat16_tensors_are_stepped_in_float32(self):
        torch = pytest.importorskip("torch")
        q, k, v = (torch.tensor(x[0]).to(torch.bfloat16) for x in tokens(1))
        decoder = kt.Decoder("elu", shape=(2, 3), d=D, value_width=WIDTH)
        out = decoder.step(q, k, v)
        assert out.dtype == torch.bfloat16
        exact = kt.Decoder("elu", shape=(2, 3), d=D, value_width=WIDTH)
        single = exact.step(*(x.float() for x in (q, k, v)))
        assert torch.equal(out, single.to(torch.bfloat16))

    def test_tensors_with_the_negative_bit(self):
        torch = pytest.importorskip("torch")
        q, k, v = (torch.tensor(x[0]) for x in tokens(1))
        negative = [torch.complex(torch.zeros_like(x), -x).conj().imag for x in (q, k, v)]
        assert negative[0].is_neg()
        made = [
            kt.Decoder("elu", shape=(2, 3), d=D, value_width=WIDTH, dtype="float64").step(*arrays)
            for arrays in ((q, k, v), negative)
        ]
        assert torch.equal(*made)

    def test_states_of_other_libraries_are_continued(self):
        torch = pytest.importorskip("torch")
        q, k, v = tokens()
        expected = whole(q, k, v, "elu")
        arrays = [torch.tensor(np.moveaxis(x, 0, -2)) for x in (q[:6], k[:6], v[:6])]
        _, state = kt.linear_attention(*arrays, "elu", causal=True, return_state=True)
        decoder = kt.Decoder(
            "elu", shape=(2, 3), d=D, value_width=WIDTH, dtype="float64", state=state
        )
        np.testing.assert_allclose(run(decoder, q[6:], k[6:], v[6:]), expected[6:], rtol=1e-11)


class TestRefusals:
    def step(self, *changes, decay=0, log_decay=None):
        arrays = [x[0] for x in tokens(1)]
        for index, change in changes:
            arrays[index] = change(arrays[index])
        decoder = kt.Decoder(
            "elu", shape=(2, 3), d=D, value_width=WIDTH, dtype="float64", decay=decay
        )
        try:
            return decoder.step(*arrays, log_decay)
        finally:
            assert decoder.snapshot().stop == 0  # nothing changed
            assert (decoder.snapshot().U == 0).all()

    @pytest.mark.parametrize("index", [0, 1, 2])
    def test_wrong_shapes(self, index):
        for change in (
            lambda x: x[..., :-1],
            lambda x: x[:1],
            lambda x: x[:, :1],
            lambda x: x[None],
            lambda x: x.ravel(),
            lambda x: x[:0],
        ):
            with pytest.raises(ValueError, match=r"takes q, k and v of shapes .*\(2, 3, 5\).* not"):
                self.step((index, change))

    @pytest.mark.parametrize("index", [0, 1, 2])
    def test_wrong_dtypes(self, index):
        for dtype in ("float32", "int64", "complex128", ">f8", "bool"):
            with pytest.raises(TypeError, match=r"computes with float64, but q, k, v are .*cast"):
                self.step((index, lambda x, dtype=dtype: x.astype(dtype)))

    @pytest.mark.parametrize("index", [0, 1, 2])
    def test_what_is_no_array(self, index):
        for change in (lambda x: x.tolist(), lambda x: None, lambda x: 1.0):
            with pytest.raises(TypeError, match="a decoder takes arrays, not"):
                self.step((index, change))

    def test_decay_where_there_is_none_and_none_where_there_is(self):
        with pytest.raises(ValueError, match=r"decay=0: a step takes no log_decay"):
            self.step(log_decay=-0.1)
        for decay in (1, D):
            with pytest.raises(ValueError, match=rf"decay={decay}: every step needs a log_decay"):
                self.step(decay=decay)

    @pytest.mark.parametrize("decay", [1, D])
    def test_wrong_decays(self, decay):
        for wrong in (0.1, np.nan, -np.inf, np.full((2, 3) + (D,) * (decay > 1), np.nan)):
            with pytest.raises(ValueError, match="finite and ≤ 0"):
                self.step(decay=decay, log_decay=wrong)
        for shape in ((4,), (3, 2), (1, 2, 3, D), (2, 3, 4)):
            with pytest.raises(ValueError, match=r"takes log_decay of shape \(2, 3.* not \("):
                self.step(decay=decay, log_decay=np.zeros(shape))
        for wrong in ("0", [0.0], np.zeros((2, 3), complex), True, {}):
            with pytest.raises(TypeError, match="log_decay must be a number or an array"):
                self.step(decay=decay, log_decay=wrong)

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"shape": ()}, "needs shape="),
            ({"shape": (2, -1)}, "shape to be a whole number ≥ 0"),
            ({"shape": (2.5,)}, "shape to be a whole number"),
            ({"d": 0}, "d to be a whole number ≥ 1"),
            ({"d": True}, "d to be a whole number"),
            ({"value_width": -1}, "value_width to be a whole number ≥ 0"),
            ({"groups": 0}, "groups to be a whole number ≥ 1"),
            ({"dtype": "int8"}, "float16, bfloat16, float32, float64, not 'int8'"),
            ({"dtype": None}, "float16, float32, float64, not None"),
            ({"dtype": 7}, "float16, float32, float64, not 7"),
            ({"decay": 2}, r"decay to be 0, 1 or 4 \(one per feature\), not 2"),
            ({"decay": -1}, "decay to be 0, 1 or 4"),
            ({"decay": "1"}, "decay to be 0, 1 or 4"),
            ({"decay": True}, "decay to be 0, 1 or 4"),
            ({"on_zero": "ignore"}, "on_zero must be"),
            ({"scale": 0.0}, "scale > 0"),
            ({"feature_map": "elo"}, "elo"),
        ],
    )
    def test_wrong_arguments(self, options, message):
        with pytest.raises(ValueError, match=message):
            kt.Decoder(**{"shape": (2,), "d": 4, **options})

    def test_states_of_strangers(self):
        q, k, v = tokens()
        _, state = whole(q, k, v, "elu", return_state=True)
        options = {"d": D, "value_width": WIDTH, "state": state}
        with pytest.raises(ValueError, match=r"state is of elu.*needs relu"):
            kt.Decoder("relu", shape=(2, 3), **options)
        with pytest.raises(ValueError, match=r"U \(2, 3, 5, 3\).*need \(2, 4, 5, 3\)"):
            kt.Decoder("elu", shape=(2, 4), **options)
        with pytest.raises(ValueError, match=r"M = 3.*M = 4"):
            kt.Decoder("elu", shape=(2, 3), **{**options, "value_width": 4})
        with pytest.raises(TypeError, match="must be a State, not dict"):
            kt.Decoder("elu", shape=(2, 3), d=D, state={})


def test_inputs_are_not_changed(isa):
    arrays = [x[0] for x in tokens(1)]
    arrays[1][0, 0, 0] = np.nan
    copies = [x.copy() for x in arrays]
    decoder = kt.Decoder("elu", shape=(2, 3), d=D, value_width=WIDTH, dtype="float64")
    decoder.step(*arrays)
    assert all(same_bits(x, y) for x, y in zip(arrays, copies, strict=True))


def test_outputs_are_arrays_of_their_own(compiled):
    q, k, v = tokens(2)
    decoder = kt.Decoder("elu", shape=(2, 3), d=D, value_width=WIDTH, dtype="float64")
    first = decoder.step(q[0], k[0], v[0])
    kept = first.copy()
    decoder.step(q[1], k[1], v[1])
    assert same_bits(first, kept)
