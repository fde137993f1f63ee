"""States: streams equal batches, halves merge, files load, and foreign states are refused."""

import dataclasses
import struct

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st
from oracle import DECAYS, MAPS, make_decay, same_bits

import kerneltrick as kt
from kerneltrick import maps

ENGINES = ["dense", "recurrent", "chunked", "native"]


def inputs(n, seed=0, lead=(2,), dtype=np.float64):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((*lead, n, w)).astype(dtype) for w in (4, 4, 3)]


def part(x, lo, hi, n):
    """Slice a per-token array (tokens on the axis of length n); return anything else whole."""
    if not isinstance(x, np.ndarray) or n not in x.shape:
        return x
    axis = x.shape.index(n)
    return np.take(x, np.arange(lo, hi), axis=axis)


@given(
    text=st.sampled_from(MAPS),
    kind=st.sampled_from(DECAYS),
    cuts=st.tuples(st.integers(0, 60), st.integers(0, 60)),
)
def test_merge_is_associative_and_equals_the_whole(text, kind, cuts):
    n = 60
    q, k, v = inputs(n, 2)
    decay = make_decay(kind, np.random.default_rng(3), k, maps.get(text).dim(4))
    options = {"causal": True, "on_zero": "nan", "return_state": True}
    _, whole = kt.linear_attention(q, k, v, text, log_decay=decay, **options)
    states = []
    for lo, hi in zip([0, *sorted(cuts)], [*sorted(cuts), n], strict=True):
        pieces = [x[:, lo:hi] for x in (q, k, v)]
        empty = kt.State.empty(text, pieces[1], pieces[2], start=lo)
        _, state = kt.linear_attention(
            *pieces, text, log_decay=part(decay, lo, hi, n), state=empty, **options
        )
        states.append(state)
    a, b, c = states
    left, right = a.merge(b).merge(c), a.merge(b.merge(c))
    for merged in (left, right):
        assert (merged.start, merged.stop) == (0, n)
        shift = np.exp(merged.log_scale - whole.log_scale)
        size = np.abs(whole.U).max()
        np.testing.assert_allclose(
            merged.U * shift[:, None, None], whole.U, rtol=1e-10, atol=1e-11 * size
        )
        np.testing.assert_allclose(merged.Z * shift[:, None], whole.Z, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(merged.log_decay, whole.log_decay, rtol=1e-12)


def test_merge_forgets_the_left_where_the_right_restarted():
    q, k, v = inputs(40)
    ids = np.repeat([0, 1], 20)
    options = {"causal": True, "return_state": True}
    _, left = kt.linear_attention(q[:, :15], k[:, :15], v[:, :15], **options)
    empty = kt.State.empty("elu", k, v, start=15)
    _, right = kt.linear_attention(
        q[:, 15:], k[:, 15:], v[:, 15:], segment_ids=ids[15:], state=empty, **options
    )
    _, whole = kt.linear_attention(q, k, v, segment_ids=ids, **options)
    np.testing.assert_allclose(left.merge(right).U, whole.U, rtol=1e-12)


def test_full_attention_adds_its_keys_to_the_state():
    q, k, v = inputs(50)
    _, state = kt.linear_attention(q[:, :20], k[:, :20], v[:, :20], return_state=True)
    out, after = kt.linear_attention(
        q, k[:, 20:], v[:, 20:], state=state, return_state=True, causal=False
    )
    np.testing.assert_allclose(out, kt.linear_attention(q, k, v), rtol=1e-12)
    assert after.stop == 50


def test_weights_and_outputs_after_a_state_agree():
    q, k, v = inputs(50)
    for text in ("elu", "favor:features=8"):
        options = {"causal": True, "log_decay": -0.05}
        _, state = kt.linear_attention(
            q[:, :20], k[:, :20], v[:, :20], text, return_state=True, **options
        )
        weights = kt.attention_weights(q[:, 20:], k[:, 20:], text, state=state, **options)
        whole = kt.attention_weights(q, k, text, **options)
        np.testing.assert_allclose(weights, whole[:, 20:, 20:], rtol=1e-10)
        assert (weights.sum(-1) < 1).all()


def test_state_is_not_changed_by_use():
    q, k, v = inputs(30)
    _, state = kt.linear_attention(q, k, v, causal=True, return_state=True)
    before = state.U.copy()
    for engine in ENGINES:
        kt.linear_attention(q, k, v, causal=True, state=state, engine=engine)
    assert same_bits(state.U, before)
    with pytest.raises(AttributeError):
        state.stop = 0


def test_state_size_does_not_grow():
    sizes = set()
    for n in (10, 1000):
        *_, state = kt.linear_attention(*inputs(n), causal=True, return_state=True)
        sizes.add(state.nbytes)
    assert sizes == {2 * 4 * (3 + 1) * 8}


def test_float64_state_continues_in_float32_without_losing_its_scale():
    q, k, v = inputs(30, 4)
    k = k * 6
    options = {"causal": True, "return_state": True}
    _, state = kt.linear_attention(q, k, v, "exp", **options)
    later = inputs(10, 5)
    exact = kt.linear_attention(*later, "exp", causal=True, state=state)
    single = kt.linear_attention(
        *(x.astype(np.float32) for x in later), "exp", causal=True, state=state
    )
    np.testing.assert_allclose(single, exact, rtol=2e-5, atol=1e-6)


def opened(path):
    """Return the metadata and the tensors of a file."""
    with safetensors.safe_open(path, framework="numpy") as file:
        return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


class TestFiles:
    @pytest.fixture
    def state(self):
        _, state = kt.linear_attention(
            *inputs(30), "favor:features=8", causal=True, log_decay=-0.1, return_state=True
        )
        return state

    def test_round_trip_keeps_every_bit(self, state, tmp_path):
        path = tmp_path / "state.safetensors"
        state.save(path)
        again = kt.State.load(path)
        for name in ("U", "Z", "log_scale", "log_decay"):
            assert same_bits(getattr(again, name), getattr(state, name))
        assert (again.start, again.stop, again.fingerprint) == (0, 30, state.fingerprint)
        later = inputs(5, 1)
        one, two = (
            kt.linear_attention(*later, "favor:features=8", causal=True, state=s)
            for s in (state, again)
        )
        assert same_bits(one, two)
        assert [p.name for p in tmp_path.iterdir()] == ["state.safetensors"]

    def test_every_truncation_is_refused(self, state, tmp_path):
        path = tmp_path / "state.safetensors"
        state.save(path)
        data = path.read_bytes()
        for length in [0, 1, 7, 8, 9, 50, len(data) // 2, len(data) - 1]:
            path.write_bytes(data[:length])
            with pytest.raises(ValueError, match="not a readable state file"):
                kt.State.load(path)

    def test_corrupt_headers_are_refused(self, state, tmp_path):
        path = tmp_path / "state.safetensors"
        state.save(path)
        data = path.read_bytes()
        path.write_bytes(struct.pack("<Q", 2**60) + data[8:])
        with pytest.raises(ValueError, match="not a readable state file"):
            kt.State.load(path)
        path.write_bytes(data.replace(b"kerneltrick.State/1", b"kerneltrick.State/9"))
        with pytest.raises(ValueError, match=r"expected format 'kerneltrick.State/1'"):
            kt.State.load(path)
        for stop, message in (("xy", "malformed"), (2**60, "tokens 0:1152"), (2**70, "stop < 2")):
            state.save(path)
            metadata, tensors = opened(path)
            safetensors.numpy.save_file(tensors, path, {**metadata, "stop": str(stop)})
            with pytest.raises(ValueError, match=message):
                kt.State.load(path)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"fingerprint": "\x1b[31mred"}, "fingerprint is '�.31mred'"),
            ({"fingerprint": "elu@window=4 (scale 1, d = 4)"}, "window=0 and sinks=0, but is of"),
            ({"stop": " 30"}, "malformed entry ' 30'"),
            ({"stop": "٣٠"}, "malformed entry '٣٠'"),
            ({"window": "7_0"}, "malformed window"),
        ],
    )
    def test_metadata_that_this_package_never_writes_is_refused(
        self, state, change, message, tmp_path
    ):
        path = tmp_path / "state.safetensors"
        state.save(path)
        metadata, tensors = opened(path)
        safetensors.numpy.save_file(tensors, path, {**metadata, **change})
        with pytest.raises(ValueError, match=message) as caught:
            kt.State.load(path)
        assert str(caught.value).isprintable()

    def test_a_state_that_lost_its_log_scale_is_refused(self, state, tmp_path):
        path = tmp_path / "state.safetensors"
        state.save(path)
        metadata, tensors = opened(path)
        del tensors["log_scale"]
        safetensors.numpy.save_file(tensors, path, metadata)
        bare = kt.State.load(path)
        message = r"the state has no log_scale, but favor:features=8.* needs one"
        with pytest.raises(ValueError, match=message):
            kt.linear_attention(*inputs(5), "favor:features=8", causal=True, state=bare)
        with pytest.raises(ValueError, match=message):
            kt.Decoder(
                "favor:features=8", shape=(2,), d=4, value_width=3, dtype="float64", state=bare
            )
        later = kt.State.empty("favor:features=8", *inputs(5)[1:], start=30, decay_width=1)
        for left, right in ((bare, later), (later, dataclasses.replace(bare, start=30))):
            with pytest.raises(ValueError, match="log_scale"):
                left.merge(right)
        x = np.ones((2, 4))
        _, other = kt.linear_attention(x, x, x, "elu", return_state=True)
        strange = dataclasses.replace(
            other, carry=other.carry._replace(log_scale=np.zeros((1, 1, 1)))
        )
        with pytest.raises(ValueError, match=r"has a log_scale, but elu .* needs none"):
            kt.linear_attention(x, x, x, "elu", state=strange)

    @pytest.mark.parametrize("place", ["k", "v"])
    def test_a_state_spoiled_by_nan_is_saved_and_loaded(self, tmp_path, place):
        q, k, v = inputs(10)
        (k if place == "k" else v)[0, 3, 1] = np.nan
        _, state = kt.linear_attention(q, k, v, "favor:features=8", causal=True, return_state=True)
        state.save(tmp_path / "state")
        again = kt.State.load(tmp_path / "state")
        outputs = [
            kt.linear_attention(*inputs(5), "favor:features=8", causal=True, state=s)
            for s in (state, again)
        ]
        assert same_bits(*outputs)
        assert np.isnan(outputs[0]).any()

    def test_other_safetensors_files_are_refused(self, tmp_path):
        path = tmp_path / "other.safetensors"
        safetensors.numpy.save_file({"weight": np.ones(3)}, path)
        with pytest.raises(ValueError, match="expected format"):
            kt.State.load(path)
        meta = {"format": "kerneltrick.State/1", "fingerprint": "x", "start": "0", "stop": "1"}
        for tensors, message in (
            ({"U": np.ones((2, 3))}, "missing"),
            ({"U": np.ones((2, 3)), "Z": np.ones(3)}, "do not belong together"),
            ({"U": np.ones((2, 3), np.float32), "Z": np.ones(2)}, "do not belong together"),
            ({"U": np.ones((2, 3)), "Z": np.ones(2), "x": np.ones(2)}, "unexpected tensors"),
            ({"U": np.ones((2, 3)), "Z": np.ones(2), "log_scale": np.ones(5)}, "log_scale is"),
            ({"U": np.ones((2, 3)), "Z": np.ones(2), "log_decay": np.ones(5)}, "log_decay is"),
            ({"U": np.ones((2, 3)), "Z": np.array([1, np.nan])}, "Z is NaN where U is a number"),
            (
                {"U": np.ones((2, 3)), "Z": np.ones(2), "log_scale": np.full((1, 1), np.nan)},
                "log_scale is NaN",
            ),
        ):
            safetensors.numpy.save_file(tensors, path, meta)
            with pytest.raises(ValueError, match=message):
                kt.State.load(path)

    def test_missing_file_and_missing_folder(self, state, tmp_path):
        with pytest.raises(FileNotFoundError, match="no state file"):
            kt.State.load(tmp_path / "nothing")
        with pytest.raises(FileNotFoundError):
            state.save(tmp_path / "no" / "folder")


class TestRefusals:
    def test_state_of_another_map_scale_or_shape(self):
        q, k, v = inputs(20)
        _, state = kt.linear_attention(q, k, v, "elu", causal=True, return_state=True)
        with pytest.raises(ValueError, match=r"state is of elu .*needs relu"):
            kt.linear_attention(q, k, v, "relu", causal=True, state=state)
        with pytest.raises(ValueError, match=r"scale 1,.*scale 0.5,"):
            kt.linear_attention(q, k, v, "elu", causal=True, state=state, scale=0.5)
        with pytest.raises(ValueError, match=r"M = 3.*M = 2"):
            kt.linear_attention(q, k, v[..., :2], "elu", causal=True, state=state)
        with pytest.raises(ValueError, match=r"U \(2, 4, 3\).*need \(1, 4, 3\)"):
            kt.linear_attention(q[:1], k[:1], v[:1], "elu", causal=True, state=state)
        with pytest.raises(TypeError, match="must be a State, not dict"):
            kt.linear_attention(q, k, v, "elu", causal=True, state={})

    def test_state_of_other_weights(self):
        q, k, v = inputs(20)
        one, two = maps.Hedgehog(np.eye(4)), maps.Hedgehog(2 * np.eye(4))
        _, state = kt.linear_attention(q, k, v, one, causal=True, return_state=True)
        kt.linear_attention(q, k, v, maps.Hedgehog(np.eye(4)), causal=True, state=state)
        with pytest.raises(ValueError, match="sha256"):
            kt.linear_attention(q, k, v, two, causal=True, state=state)

    def test_merge_of_strangers(self):
        q, k, v = inputs(20)
        _, a = kt.linear_attention(q, k, v, causal=True, return_state=True)
        _, b = kt.linear_attention(q, k, v, "relu", return_state=True, on_zero="nan")
        _, c = kt.linear_attention(q[:1], k[:1], v[:1], causal=True, return_state=True)
        with pytest.raises(ValueError, match="ends at token 20 and the right one starts at 0"):
            a.merge(a)
        with pytest.raises(ValueError, match="states of one map"):
            a.merge(b)
        with pytest.raises(ValueError, match="states of one shape"):
            a.merge(c)
        with pytest.raises(TypeError, match="needs a State, not int"):
            a.merge(3)
