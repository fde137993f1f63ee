"""Heads with windows of their own: each is what a call with that head alone gives."""

import copy
import pickle

import numpy as np
import pytest
from oracle import near_far_heads, same_bits

import kerneltrick as kt
from kerneltrick import maps
from kerneltrick.attention import MixedState

ENGINES = ["dense", "recurrent", "chunked", "native"]
WINDOWS = (7, None, 3, 7, None)  # of five key heads
SINKS = (2, 0, 1, 2, 0)
TEXT = "elu@window=7+whole+3+7+whole,sinks=2+0+1+2+0"


def inputs(n=41, batch=(2,), heads=(10, 5), dtype=np.float64, seed=0):
    rng = np.random.default_rng(seed)
    shapes = ((heads[0], 4), (heads[1], 4), (heads[1], 3))
    return [rng.standard_normal((*batch, h, n, w)).astype(dtype) for h, w in shapes]


def of_head(arrays, head, groups=2):
    """The arrays of one key head and its query heads."""
    q, k, v = arrays
    own = slice(head, head + 1)
    return q[..., head * groups : (head + 1) * groups, :, :], k[..., own, :, :], v[..., own, :, :]


def setting_of(head, text="elu"):
    """How that head attends when it is alone."""
    return (
        "softmax" if WINDOWS[head] is None else f"{text}@window={WINDOWS[head]},sinks={SINKS[head]}"
    )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
def test_bare_heads_equal_the_loop_over_pairs_without_the_map(engine, causal):
    q, k, v = inputs(30, (), (6, 3))
    dial = kt.Dial.get("elu@window=7,sinks=2,gain=0,whole=0,bare=2")
    out = kt.linear_attention(q, k, v, dial, causal=causal, engine=engine)
    options = {"causal": causal, "window": [None, 7, 7], "sinks": [0, 2, 2]}
    quiet = np.repeat([0.0, 0.0, -np.inf], 2)  # a far key of the bare head weighs nothing
    with np.errstate(divide="ignore"):
        want = near_far_heads(q, k, v, "elu", gain=quiet, **options)
    np.testing.assert_allclose(out, want, rtol=1e-9, atol=1e-10)


def test_bare_heads_keep_no_sums():
    arrays, sizes = inputs(), {}
    for text in (
        "softmax@window=7,sinks=2",
        "elu@window=7,sinks=2",
        "elu@window=7,sinks=2,bare=0+3",
    ):
        _, state = kt.linear_attention(*arrays, text, causal=True, return_state=True)
        sizes[text] = state.bytes_by_head
    bare, mapped, mixed = sizes.values()
    assert mixed == (bare[0], mapped[1], mapped[2], bare[3], mapped[4])
    assert bare[0] < mapped[0]


@pytest.mark.parametrize("causal", [False, True], ids=["full", "causal"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_native_gives_the_bits_of_separate_calls(dtype, causal):
    arrays = inputs(150, dtype=dtype)
    mask = np.random.default_rng(1).random((2, 5, 150)) < 0.9
    options = {"causal": causal, "engine": "native"}
    out = kt.linear_attention(*arrays, "elu", window=WINDOWS, sinks=SINKS, mask=mask, **options)
    assert same_bits(out, kt.linear_attention(*arrays, TEXT, mask=mask, **options))
    for head in range(5):
        alone = kt.linear_attention(
            *of_head(arrays, head), setting_of(head), mask=mask[:, head : head + 1], **options
        )
        assert same_bits(out[:, 2 * head : 2 * head + 2], alone)


def test_weights_are_those_of_separate_calls():
    q, k, v = inputs()
    weights = kt.attention_weights(q, k, TEXT, causal=True, rows=[3, 40])
    whole = kt.attention_weights(q, k, TEXT, causal=True)
    np.testing.assert_allclose(
        whole @ np.repeat(v, 2, axis=1), kt.linear_attention(q, k, v, TEXT, causal=True), atol=1e-12
    )
    for head in range(5):
        own, keys, _ = of_head((q, k, v), head)
        alone = kt.attention_weights(own, keys, setting_of(head), causal=True, rows=[3, 40])
        assert same_bits(weights[:, 2 * head : 2 * head + 2], alone)


def test_learned_weights_and_gains_are_those_of_the_head():
    arrays, rng = inputs(), np.random.default_rng(2)
    weight, key_weight = rng.standard_normal((10, 4, 6)), rng.standard_normal((5, 4, 6))
    gain = rng.standard_normal(10)
    learned = maps.Hedgehog(weight, key_weight=key_weight)
    dial = kt.Dial(learned, 7, 2, kt.Far(gain), whole=(1, 4))
    out = kt.linear_attention(*arrays, dial, causal=True)
    for head in (0, 2, 3):
        rows = slice(2 * head, 2 * head + 2)
        own = maps.Hedgehog(weight[rows], key_weight=key_weight[head : head + 1])
        alone = kt.linear_attention(
            *of_head(arrays, head), kt.Dial(own, 7, 2, kt.Far(gain[rows])), causal=True
        )
        assert same_bits(out[:, rows], alone)


def test_positions_of_heads_go_with_them():
    q, k, v = inputs(heads=(5, 5))
    positions = np.sort(np.random.default_rng(3).integers(0, 99, (2, 5, 41)), axis=-1)
    text = "cosformer:horizon=200"
    dial = f"{text}@window=3,whole=1+4"
    out = kt.linear_attention(q, k, v, dial, causal=True, positions=positions)
    alone = kt.linear_attention(
        *(x[:, 2:3] for x in (q, k, v)),
        f"{text}@window=3",
        causal=True,
        positions=positions[:, 2:3],
    )
    assert same_bits(out[:, 2:3], alone)


class TestTexts:
    @pytest.mark.parametrize(
        "text",
        [
            "hedgehog@window=64,sinks=4,whole=0+5+7",
            "elu@whole=3",
            "elu@window=16+whole+0,sinks=1+0+2,gain=-1,relative",
            "softmax@window=8,whole=0",
            "elu@window=8,sinks=1,whole=0,bare=1+3,gain=-1",
        ],
    )
    def test_a_text_is_read_and_written(self, text):
        assert str(kt.Dial.get(text)) == text

    def test_heads_that_do_not_differ_are_one_call(self):
        arrays = inputs()
        for window, alike in (
            ([7] * 5, "elu@window=7"),
            ([None] * 5, "softmax"),
            (None, "softmax"),
        ):
            out, state = kt.linear_attention(
                *arrays, "elu", window=window, causal=True, return_state=True
            )
            same, expected = kt.linear_attention(*arrays, alike, causal=True, return_state=True)
            assert same_bits(out, same)
            assert state.fingerprint == expected.fingerprint
        assert len(kt.Dial.get("softmax@window=3,whole=0").groups(1)) == 1

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: kt.Dial.get("elu@window=1,whole=5+0"), "in increasing order, not \\(5, 0\\)"),
            (lambda: kt.Dial.get("elu@window=1,whole=0+0"), "once each"),
            (
                lambda: kt.Dial.get("elu@window=1,whole=a"),
                "to be key–value heads, such as 0\\+5\\+7",
            ),
            (
                lambda: kt.Dial.get("elu@window=1,whole=whole"),
                "heads, such as 0\\+5\\+7, not 'whole'",
            ),
            (lambda: kt.Dial(maps.get("elu"), whole=3), "whole to be a sequence of heads"),
            (lambda: kt.Dial.get("elu@window=1+x"), "one for each head, such as 64\\+whole\\+16"),
            (lambda: kt.Dial.get("elu@sinks=1+whole"), "sinks to be a whole number ≥ 0, not None"),
            (lambda: call("elu@window=1,whole=0+5"), "there are only 5 key–value heads, 0 to 4"),
            (lambda: call("elu@window=1,bare=5"), "there are only 5 key–value heads, 0 to 4"),
            (lambda: kt.Dial.get("elu@bare=1"), "bare heads see the window and the sinks alone"),
            (lambda: kt.Dial.get("elu@window=2,whole=1,bare=1"), "head 1 in whole and in bare"),
            (
                lambda: call("elu", window=[1, 2]),
                "2 windows for 5 key–value heads: give one for each",
            ),
            (lambda: call("elu", sinks=[1, 2]), "2 numbers of sinks for 5 key–value heads"),
            (
                lambda: call("elu", window=[1, 2, 3, -4, 5]),
                "window to be a whole number ≥ 0, not -4",
            ),
            (lambda: call("elu@window=2", window=WINDOWS), "got window twice"),
            (lambda: call("elu@whole=1", log_decay=-0.1), "log_decay cannot be combined"),
            (lambda: call("elu@whole=1", state=3), "state must be a State, not int"),
            (lambda: call(TEXT, state=state("elu@window=7")), "the state is of elu@window=7"),
            (
                lambda: call("elu@window=7", state=state(TEXT)),
                "the state is of heads 0\\+3: elu@win",
            ),
            (
                lambda: call(TEXT, state=state("elu@whole=1")),
                "but linear_attention needs elu@window=7",
            ),
            (lambda: state(TEXT).merge(state("elu@whole=1")), "merge needs states of one map"),
            (lambda: state(TEXT).U, "each of state.parts has its own"),
        ],
    )
    def test_what_does_not_fit_is_refused(self, make, message):
        with pytest.raises((ValueError, TypeError, AttributeError), match=message):
            make()

    def test_an_error_names_the_head_of_the_call(self):
        q, k, v = map(np.abs, inputs(5, ()))
        k[3] = -1
        with pytest.raises(kt.VanishingNormalizerError, match=r"first at index \(6, 0\)"):
            kt.linear_attention(q, k, v, "relu@whole=0+2", causal=True)


def call(setting, **options):
    return kt.linear_attention(*inputs(), setting, causal=True, **options)


def state(setting, arrays=None, **options):
    arrays = inputs() if arrays is None else arrays
    return kt.linear_attention(*arrays, setting, causal=True, return_state=True, **options)[1]


def cut(arrays, *bounds):
    return [x[..., slice(*bounds), :] for x in arrays]


class TestStates:
    @pytest.mark.parametrize("engine", ["chunked", "native"])
    def test_a_text_in_pieces_is_the_whole(self, engine):
        arrays = inputs()
        whole = kt.linear_attention(*arrays, TEXT, causal=True)
        made, found = [], None
        for bounds in ((0, 1), (1, 20), (20, 20), (20, 41)):
            out, found = kt.linear_attention(
                *cut(arrays, *bounds),
                TEXT,
                causal=True,
                state=found,
                return_state=True,
                engine=engine,
            )
            made.append(out)
        np.testing.assert_allclose(np.concatenate(made, axis=-2), whole, atol=1e-12)
        assert (found.start, found.stop, found.heads) == (0, 41, ((0, 3), (1, 4), (2,)))

    def test_each_head_has_the_state_of_a_separate_call(self):
        arrays = inputs()
        found = state(TEXT)
        sizes = [state(setting_of(i), of_head(arrays, i)).nbytes for i in range(5)]
        assert list(found.bytes_by_head) == sizes
        assert found.nbytes == sum(sizes)
        # Keys and values of all 41 tokens; sums, and 2 sinks and 6 tokens.
        assert (sizes[1], sizes[0]) == (2 * 41 * 7 * 8, 2 * (4 * 4 + 8 * 7) * 8)
        alone = state(setting_of(2), of_head(arrays, 2))
        assert same_bits(found.parts[2].sums.hi, alone.sums.hi)

    def test_halves_merge_to_the_whole(self):
        arrays, whole = inputs(), state(TEXT)
        left = state(TEXT, cut(arrays, 0, 20))
        right = state(TEXT, cut(arrays, 20, 41), state=kt.State.empty(TEXT, *arrays[1:], start=20))
        merged = left.merge(right, "elu")
        assert (merged.start, merged.stop) == (0, 41)
        for a, b in zip(merged.parts, whole.parts, strict=True):
            np.testing.assert_allclose(a.sums.hi, b.sums.hi, atol=1e-12)
            assert same_bits(a.near.k[a.near.keep[..., 0]], b.near.k[b.near.keep[..., 0]])

    def test_copies_and_files_are_the_state(self, tmp_path):
        found = state(TEXT)
        found.save(tmp_path / "state")
        again = kt.State.load(tmp_path / "state")
        for other in (
            again,
            copy.copy(found),
            copy.deepcopy(found),
            pickle.loads(pickle.dumps(found)),
        ):
            assert isinstance(other, MixedState)
            assert (other.heads, other.fingerprint) == (found.heads, found.fingerprint)
            for a, b in zip(other.parts, found.parts, strict=True):
                assert same_bits(a.sums.hi, b.sums.hi)
                assert all(map(same_bits, a.near, b.near))
        assert repr(again) == repr(found)
        assert repr(found).startswith("<MixedState of heads 0+3: elu@window=7,sinks=2 (scale 1")

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"heads": "0+3 1+4 3"}, "its parts have the heads"),
            ({"heads": "0+3 1+2"}, "unexpected tensors"),
            ({"heads": "0 1+4 2+3"}, "its parts do not belong together"),
            ({"heads": "0+x 1+4 2"}, "malformed entry"),
            ({"1.stop": "40"}, "its parts do not belong together"),
            ({"1.format": "?"}, "expected format 'kerneltrick.State/1'"),
        ],
    )
    def test_broken_files_are_refused(self, tmp_path, change, message):
        from kerneltrick.attention import encoded, tensors_of

        tensors, metadata = tensors_of(state(TEXT))
        (tmp_path / "state").write_bytes(encoded(tensors, metadata | change))
        with pytest.raises(ValueError, match=message):
            kt.State.load(tmp_path / "state")

    def test_streams_are_selected(self):
        arrays = inputs()
        picked = state(TEXT).select(np.array([1, 1, 0]))
        more = inputs(5, seed=7)
        out = call_after(picked, [x[[1, 1, 0]] for x in more])
        assert same_bits(out, call_after(state(TEXT, arrays), more)[[1, 1, 0]])


def call_after(before, arrays):
    return kt.linear_attention(*arrays, TEXT, causal=True, state=before)


class TestDecoder:
    def test_steps_are_the_whole(self):
        q, k, v = arrays = inputs()
        whole = kt.linear_attention(*arrays, TEXT, causal=True)
        before = state(TEXT, cut(arrays, 0, 11))
        decoder = kt.Decoder(
            TEXT, shape=(2, 5), d=4, value_width=3, groups=2, dtype="float64", state=before
        )
        for t in range(11, 41):
            if t == 30:
                decoder = copy.copy(decoder)
            out = decoder.step(q[:, :, t], k[:, :, t], v[:, :, t])
            np.testing.assert_allclose(out, whole[:, :, t], atol=1e-12)
        assert decoder.compiled
        after = decoder.snapshot()
        assert after.nbytes == state(TEXT).nbytes
        assert (after.start, after.stop, decoder.stop) == (0, 41, 41)
        more = inputs(5, seed=7)
        np.testing.assert_allclose(
            call_after(after, more), call_after(state(TEXT), more), atol=1e-12
        )

    def test_a_normaliser_of_zero_leaves_all_heads_at_the_same_token(self):
        q, k, v = inputs(3, (), heads=(2, 2))
        k[0, 1] = -1
        q[0] = [1, 0, 0, 0]
        k[0, 0] = k[0, 2] = -1
        decoder = kt.Decoder("relu@whole=1", shape=(2,), d=4, value_width=3, dtype="float64")
        for t in range(3):
            with pytest.raises(kt.VanishingNormalizerError, match=f"at token {t}"):
                decoder.step(q[:, t], k[:, t], v[:, t])
        assert [part.stop for part in decoder.snapshot().parts] == [3, 3]

    def test_heads_that_do_not_differ_are_one_decoder(self):
        decoder = kt.Decoder("elu@whole=0+1", shape=(2,), d=4)
        assert decoder.snapshot().fingerprint.startswith("softmax (")


class TestTorch:
    def test_gradients_are_those_of_separate_calls(self):
        torch = pytest.importorskip("torch")
        made = inputs(70)
        together = [torch.tensor(x, requires_grad=True) for x in made]
        kt.linear_attention(*together, TEXT, causal=True).sin().sum().backward()
        for head in range(5):
            alone = [torch.tensor(x, requires_grad=True) for x in of_head(made, head)]
            kt.linear_attention(*alone, setting_of(head), causal=True).sin().sum().backward()
            for a, b in zip(of_head([x.grad for x in together], head), alone, strict=True):
                assert same_bits(a.numpy(), b.grad.numpy())

    @pytest.mark.parametrize("engine", ["native", pytest.param("chunked", marks=pytest.mark.slow)])
    def test_gradcheck(self, engine):
        torch = pytest.importorskip("torch")
        arrays = [torch.tensor(x, requires_grad=True) for x in inputs(5, (), (6, 3))]
        gain = torch.zeros(6, dtype=torch.float64, requires_grad=True)
        weight = torch.randn(3, 4, 2, dtype=torch.float64, requires_grad=True)

        def run(q, k, v, gain, weight):
            dial = kt.Dial(maps.Hedgehog(weight), (2, None, 4), far=kt.Far(gain))
            return kt.linear_attention(q, k, v, dial, causal=True, engine=engine)

        torch.manual_seed(0)
        assert torch.autograd.gradcheck(run, (*arrays, gain, weight))

    @pytest.mark.slow
    def test_a_layer_compiles_and_exports(self):
        torch = pytest.importorskip("torch")
        from kerneltrick.torch import Attention

        with torch.no_grad():  # PyTorch warns of states with gradients
            self.compile_and_export(torch, Attention)

    @staticmethod
    def compile_and_export(torch, Attention):
        torch.manual_seed(0)
        layer = Attention(32, 4, num_kv_heads=2, feature_map="elu", window=(5, None), rotary=True)
        x = torch.randn(2, 30, 32)
        whole, after = layer(x)
        compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
        y, first = compiled(x[:, :20])
        z, last = compiled(x[:, 20:], first)
        torch.testing.assert_close(torch.cat([y, z], 1), whole, atol=1e-5, rtol=1e-5)
        assert last.memory.heads == after.memory.heads == ((0,), (1,))
        program = torch.export.export(layer, (x,), strict=False)
        torch.testing.assert_close(program.module()(x)[0], whole, atol=1e-5, rtol=1e-5)

    def test_a_layer_streams_saves_and_goes_on(self, tmp_path):
        torch = pytest.importorskip("torch")
        from kerneltrick.torch import Attention, MixerState

        torch.manual_seed(0)
        layer = Attention(32, 4, num_kv_heads=2, feature_map="elu@window=5,whole=1", rotary=True)
        x, mask = torch.randn(2, 30, 32), torch.ones(2, 30, dtype=torch.bool)
        mask[0, :4] = False
        whole, _ = layer(x, mask=mask)
        _, first = layer(x[:, :20], mask=mask[:, :20])
        first.save(tmp_path / "state")
        first = MixerState.load(tmp_path / "state", like=x)
        y, _ = layer(x[:, 20:], first)
        torch.testing.assert_close(y, whole[:, 20:], atol=1e-5, rtol=1e-5)
        assert layer.weights(x, rows=[7]).weights.shape == (2, 4, 1, 30)
        with torch.no_grad():
            live = layer.live(layer(x[:, :20])[1])
            for t in range(20, 30):
                y, live = layer(x[:, t : t + 1], live)
            torch.testing.assert_close(y, layer(x)[0][:, 29:], atol=1e-5, rtol=1e-5)
        assert live.frozen().memory.heads == ((0,), (1,))


class TestJax:
    @pytest.mark.slow
    def test_a_compiled_scan_carries_the_state(self):
        jax = pytest.importorskip("jax")
        arrays = [jax.numpy.asarray(x) for x in inputs(12, (), dtype=np.float32)]
        whole = kt.linear_attention(*arrays, TEXT, causal=True)

        @jax.jit
        def run(*arrays):
            first = [x[:, :6] for x in arrays]
            out, carried = kt.linear_attention(*first, TEXT, causal=True, return_state=True)
            rest = [x[:, 6:] for x in arrays]
            return out, kt.linear_attention(*rest, TEXT, causal=True, state=carried), carried

        left, right, carried = run(*arrays)
        np.testing.assert_allclose(np.concatenate([left, right], 1), whole, atol=1e-5)
        assert isinstance(carried, MixedState)
        assert carried.heads == ((0, 3), (1, 4), (2,))
