"""States with a window: constant size, streams equal batches at any split, merge, files, forks."""

import copy
import itertools
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from oracle import near_far, same_bits

import kerneltrick as kt
from kerneltrick import maps

ENGINES = ["dense", "recurrent", "chunked", "native"]


def inputs(n, seed=0, lead=(2,), d=4, width=3, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((*lead, n, w)).astype(dtype) for w in (d, d, width)]


def same_state(a, b):
    assert (a.start, a.stop, a.fingerprint) == (b.start, b.stop, b.fingerprint)
    scales = [np.exp(s.log_scale)[..., None, None] for s in (a, b)]
    np.testing.assert_allclose(a.U * scales[0], b.U * scales[1], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(a.near.keep, b.near.keep)
    np.testing.assert_array_equal(a.near.count, b.near.count)
    for ours, theirs in zip(a.near[:3], b.near[:3], strict=True):
        np.testing.assert_array_equal(
            np.where(a.near.keep, ours, 0), np.where(b.near.keep, theirs, 0)
        )


@given(data=st.data())
def test_a_stream_cut_anywhere_is_the_batch(data):
    """Inside the window, inside a chunk, with masks and segments, by different engines."""
    n = data.draw(st.integers(1, 40))
    cuts = sorted(data.draw(st.lists(st.integers(0, n), max_size=3)))
    window = data.draw(st.sampled_from([0, 1, 2, 7, 20, 50]))
    sinks = data.draw(st.sampled_from([0, 1, 4] if window else [1, 4]))
    text = data.draw(
        st.sampled_from(["elu", "favor:features=8", "softmax", "cosformer:horizon=99"])
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    lead = data.draw(st.sampled_from([(), (2,), (2, 3)]))
    q, k, v = inputs(n, seed=int(rng.integers(999)), lead=lead)
    mask = rng.random(n) < 0.7 if data.draw(st.booleans()) else np.ones(n, bool)
    ids = np.sort(rng.integers(0, 3, n)) if data.draw(st.booleans()) else np.zeros(n, int)
    for cut in cuts:  # a segment may begin within a call only
        if 0 < cut < n:
            ids[cut:] -= ids[cut] - ids[cut - 1]

    def run(first, last, state, engine):
        stretch = [x[..., first:last, :] for x in (q, k, v)]
        return kt.linear_attention(
            *stretch, text, causal=True, window=window, sinks=sinks, mask=mask[first:last],
            segment_ids=ids[first:last], state=state, return_state=True, engine=engine,
            chunk_size=5, on_zero="nan",
        )  # fmt: skip

    whole, after = run(0, n, None, "dense")
    parts, state = [], None
    edges = [0, *cuts, n]
    for first, last in itertools.pairwise(edges):
        out, state = run(first, last, state, data.draw(st.sampled_from(ENGINES)))
        parts.append(out)
    np.testing.assert_allclose(np.concatenate(parts, axis=-2), whole, rtol=1e-9, atol=1e-10)
    same_state(state, after)


@given(data=st.data())
def test_halves_merge_to_the_whole(data):
    """The last tokens of the left half and the sinks of the right half go into the sums."""
    n, cut = 40, data.draw(st.integers(0, 40))
    window = data.draw(st.sampled_from([0, 1, 2, 7, 20, 50]))
    sinks = data.draw(st.sampled_from([0, 1, 4] if window else [1, 4]))
    text = data.draw(st.sampled_from(["elu", "favor:features=8", "softmax"]))
    lead = data.draw(st.sampled_from([(), (2, 3)]))
    q, k, v = inputs(n, lead=lead)
    rng = np.random.default_rng(data.draw(st.integers(0, 999)))
    mask = rng.random(n) < 0.7 if data.draw(st.booleans()) else np.ones(n, bool)
    options = {"causal": True, "window": window, "sinks": sinks, "on_zero": "nan"}

    def run(first, last, state):
        stretch = [x[..., first:last, :] for x in (q, k, v)]
        return kt.linear_attention(
            *stretch, text, mask=mask[first:last], state=state, return_state=True, **options
        )[1]

    whole = run(0, n, None)
    empty = kt.State.empty(text, k, v, start=cut, window=window, sinks=sinks)
    merged = run(0, cut, None).merge(run(cut, n, empty), None if text == "softmax" else text)
    assert merged.stop == n
    later = inputs(9, seed=7, lead=lead)
    want = kt.linear_attention(*later, text, state=whole, **options)
    out = kt.linear_attention(*later, text, state=merged, **options)
    np.testing.assert_allclose(out, want, rtol=1e-9, atol=1e-10)


def test_a_half_that_restarted_forgets_the_left_one():
    q, k, v = inputs(30)
    ids = np.repeat([0, 1], [20, 10])
    options = {"causal": True, "window": 4, "sinks": 2}
    _, whole = kt.linear_attention(q, k, v, segment_ids=ids, return_state=True, **options)
    stretch = [x[:, 15:] for x in (q, k, v)]
    empty = kt.State.empty("elu", k, v, start=15, decay_width=1, window=4, sinks=2)
    _, right = kt.linear_attention(
        *stretch, segment_ids=ids[15:], state=empty, return_state=True, **options
    )
    _, left = kt.linear_attention(*(x[:, :15] for x in (q, k, v)), return_state=True, **options)
    merged = left.merge(right, "elu")
    same_state(merged, whole)


def test_merge_asks_for_the_map_and_refuses_another():
    q, k, v = inputs(20)
    options = {"causal": True, "window": 4, "return_state": True}
    _, left = kt.linear_attention(*(x[:, :10] for x in (q, k, v)), "elu", **options)
    empty = kt.State.empty("elu", k, v, start=10, window=4)
    _, right = kt.linear_attention(*(x[:, 10:] for x in (q, k, v)), "elu", state=empty, **options)
    with pytest.raises(ValueError, match="needs the feature map"):
        left.merge(right)
    with pytest.raises(ValueError, match=r"of elu@window=4 .*, but the map given is exp@window=4"):
        left.merge(right, "exp")


@pytest.mark.parametrize("text", ["elu", "softmax"])
def test_the_size_does_not_grow_with_the_stream(text):
    options = {"causal": True, "window": 8, "sinks": 2, "return_state": True}
    sizes = {kt.linear_attention(*inputs(n), text, **options)[1].nbytes for n in (10, 50, 200)}
    m = maps.get(text).dim(4)
    assert sizes == {8 * 2 * (m * 4 + (7 + 2) * (4 + 3))}


def test_a_state_of_another_window_is_refused():
    q, k, v = inputs(10)
    _, state = kt.linear_attention(q, k, v, "elu", causal=True, window=4, return_state=True)
    for window, sinks in ((5, 0), (4, 1), (0, 0)):
        with pytest.raises(ValueError, match=r"the state is of elu@window=4 .*needs elu"):
            kt.linear_attention(
                q, k, v, "elu", causal=True, window=window, sinks=sinks, state=state
            )


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("text", ["cosformer:horizon=99", "softmax"])
def test_full_attention_counts_on_from_the_state(text, engine):
    """Queries see the state's tokens and all of the call's, near or far by their ranks."""
    q, k, v = inputs(30, lead=(1,))
    mask = np.random.default_rng(4).random(30) < 0.8
    # In the last case the state has kept more tokens than the call has.
    for window, sinks, cut in ((1, 0, 18), (5, 2, 18), (0, 3, 18), (40, 0, 18), (12, 1, 26)):
        options = {"window": window, "sinks": sinks, "engine": engine, "chunk_size": 4}
        state = None
        for first, last, causal in ((0, 12, True), (12, cut, False)):  # a prompt in two ways
            stretch = [x[:, first:last] for x in (q, k, v)]
            _, state = kt.linear_attention(
                *stretch, text, causal=causal, mask=mask[first:last], state=state,
                return_state=True, on_zero="nan", **options,
            )  # fmt: skip
        out = kt.linear_attention(
            *(x[:, cut:] for x in (q, k, v)), text, mask=mask[cut:], state=state, far=0.0, **options
        )
        feature_map = maps.get(text)
        root = feature_map.default_scale(4) ** 0.5
        phi = [feature_map.phi(root * x[0], np.arange(30)) for x in (q, k)]
        want = near_far(q[0], k[0], v[0], *phi, window=window, sinks=sinks, mask=mask)
        np.testing.assert_allclose(out[0], want[cut:], rtol=1e-9)


def test_another_gain_may_continue_a_state():
    """The sums hold φ(k), not its units."""
    q, k, v = inputs(20)
    options = {"causal": True, "window": 4}
    _, state = kt.linear_attention(
        *(x[:, :10] for x in (q, k, v)), "elu", return_state=True, far=1.0, **options
    )
    out = kt.linear_attention(
        *(x[:, 10:] for x in (q, k, v)), "elu", state=state, far=-1.0, **options
    )
    whole = kt.linear_attention(q, k, v, "elu", far=-1.0, **options)
    np.testing.assert_allclose(out, whole[:, 10:], rtol=1e-10)


@pytest.mark.parametrize("text", ["elu", "favor:features=8", "softmax"])
def test_a_file_gives_the_state_back(text, tmp_path):
    options = {"causal": True, "window": 4, "sinks": 1}
    _, state = kt.linear_attention(
        *inputs(20, dtype=np.float32), text, return_state=True, **options
    )
    state.save(tmp_path / "s")
    again = kt.State.load(tmp_path / "s")
    same_state(again, state)
    assert again.near.k.dtype == np.float32
    later = inputs(5, seed=3, dtype=np.float32)
    assert same_bits(
        kt.linear_attention(*later, text, state=again, **options),
        kt.linear_attention(*later, text, state=state, **options),
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"near_k": None}, "not all of their tokens"),
        ({"near_keep": np.ones((2, 5, 1))}, "near_keep is float64"),
        ({"near_v": np.ones((2, 5, 9))}, r"near_v is float64 \(2, 5, 9\)"),
        ({"near_count": np.full((2, 1, 1), -3)}, "it counts -3 tokens"),
        ({"near_extra": np.ones(3)}, "unexpected tensors"),
    ],
)
def test_damaged_files_are_refused_by_name(change, message, tmp_path):
    import safetensors.numpy

    _, state = kt.linear_attention(
        *inputs(20), "elu", causal=True, window=4, sinks=2, return_state=True
    )
    state.save(tmp_path / "s")
    with safetensors.safe_open(tmp_path / "s", framework="numpy") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    tensors |= change
    tensors = {name: x for name, x in tensors.items() if x is not None}
    safetensors.numpy.save_file(tensors, tmp_path / "t", metadata)
    with pytest.raises(ValueError, match=message):
        kt.State.load(tmp_path / "t")


def test_copies_are_independent():
    torch = pytest.importorskip("torch")
    q, k, v = (torch.asarray(x).requires_grad_() for x in inputs(10))
    options = {"causal": True, "window": 4}
    _, state = kt.linear_attention(q, k, v, "elu", return_state=True, **options)
    before = state.Z.detach().clone()
    with torch.no_grad():
        state.Z.add_(1)
        state.U.add_(1)
        for made in (copy.copy(state), copy.deepcopy(state)):
            made.sums.hi.add_(1)
            made.near.k.add_(1)
    assert torch.equal(state.Z, before)
    plain = inputs(10)
    _, state = kt.linear_attention(*plain, "elu", return_state=True, **options)
    for made in (copy.copy(state), copy.deepcopy(state), pickle.loads(pickle.dumps(state))):
        same_state(made, state)
        assert not made.U.flags.writeable
    learned = maps.Hedgehog(torch.eye(4, requires_grad=True), key_weight=2 * np.eye(4))
    for made in (copy.copy(learned), copy.deepcopy(learned)):
        assert str(made) == str(learned)
        made.key_weight[...] = 0
        with torch.no_grad():
            made.weight.zero_()
        assert learned.weight.sum() == 4
        assert learned.key_weight.sum() == 8
        assert made.weight.is_leaf


def test_a_state_moves_between_libraries():
    torch = pytest.importorskip("torch")
    options = {"causal": True, "window": 4, "sinks": 1}
    _, state = kt.linear_attention(*inputs(20), "elu", return_state=True, **options)
    later = inputs(5, seed=3)
    want = kt.linear_attention(*later, "elu", state=state, **options)
    tensors = [torch.asarray(x) for x in later]
    out = kt.linear_attention(*tensors, "elu", state=state.to(tensors[0]), **options)
    np.testing.assert_allclose(out.numpy(), want, rtol=1e-12)
    back = state.to(tensors[0]).to(later[0])
    assert same_bits(kt.linear_attention(*later, "elu", state=back, **options), want)


def test_jax_streams_in_one_scan():
    """State.empty has room for a full window, so that the carry keeps its shape."""
    jax = pytest.importorskip("jax")
    q, k, v = (jax.numpy.asarray(x) for x in inputs(9, dtype=np.float32))
    options = {"causal": True, "window": 4, "sinks": 1}
    whole = kt.linear_attention(q, k, v, "elu", **options)
    first = kt.State.empty("elu", k, v, window=4, sinks=1)

    def step(state, token):
        out, state = kt.linear_attention(
            *(x[:, None] for x in token), "elu", state=state, return_state=True, **options
        )
        return state, out[:, 0]

    tokens = tuple(jax.numpy.moveaxis(x, 1, 0) for x in (q, k, v))
    _, rows = jax.lax.scan(step, first, tokens)
    np.testing.assert_allclose(np.moveaxis(np.asarray(rows), 0, 1), whole, atol=1e-5)


@pytest.mark.parametrize("text", ["elu@window=4,sinks=1", "favor:features=8", "softmax"])
def test_streams_of_a_batch_are_selected(text):
    q, k, v = inputs(20, lead=(3, 2))
    _, state = kt.linear_attention(
        *(x[..., :12, :] for x in (q, k, v)), text, causal=True, return_state=True
    )
    streams = np.array([2, 0, 2])
    rest = [x[streams][..., 12:, :] for x in (q, k, v)]
    out = kt.linear_attention(*rest, text, causal=True, state=state.select(streams))
    whole = kt.linear_attention(q, k, v, text, causal=True)
    np.testing.assert_allclose(out, whole[streams][..., 12:, :], rtol=1e-9, atol=1e-12)


def test_a_state_of_one_stream_has_nothing_to_select():
    _, state = kt.linear_attention(*inputs(5), causal=True, return_state=True)
    with pytest.raises(ValueError, match=r"needs a state of a batch.* not of U \(2, 4, 3\)"):
        state.select(np.array([0]))


@pytest.mark.parametrize("change", [{"window": "7"}, {"window": str(2**70)}, {"sinks": "1"}])
def test_a_window_that_is_not_the_fingerprint_s_is_refused(change, tmp_path):
    import safetensors.numpy

    _, state = kt.linear_attention(
        *inputs(20), "elu", causal=True, window=4, sinks=2, return_state=True
    )
    state.save(tmp_path / "s")
    with safetensors.safe_open(tmp_path / "s", framework="numpy") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    safetensors.numpy.save_file(tensors, tmp_path / "s", {**metadata, **change})
    with pytest.raises(ValueError, match="but is of elu@window=4,sinks=2"):
        kt.State.load(tmp_path / "s")
