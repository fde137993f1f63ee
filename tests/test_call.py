"""A repeated call skips the checks, and its result must not differ."""

import numpy as np
import pytest
from oracle import same_bits

import kerneltrick as kt
from kerneltrick import maps
from kerneltrick.attention import _call


@pytest.fixture(autouse=True)
def nothing_known():
    _call._check_kind.cache_clear()
    yield
    _call._check_kind.cache_clear()


@pytest.fixture
def checked(monkeypatch):
    """Count how often the checks run."""
    calls, check = [], _call._check

    def counted(*arguments):
        calls.append(arguments)
        return check(*arguments)

    monkeypatch.setattr(_call, "_check", counted)
    return calls


def arrays(n=9, d=4, heads=2, dtype=np.float64):
    return [np.random.default_rng(i).standard_normal((heads, n, d)).astype(dtype) for i in range(3)]


def test_an_ordinary_call_is_checked_once(checked):
    data, elu = arrays(), maps.get("elu")
    for feature_map in ("elu", elu):
        first = kt.linear_attention(*data, feature_map, causal=True)
        for _ in range(3):
            assert same_bits(kt.linear_attention(*data, feature_map, causal=True), first)
    assert len(checked) == 2


def test_one_with_exact_weights_too(checked):
    data = arrays()
    for attend in (kt.softmax_attention, lambda *x: kt.linear_attention(*x, "elu@window=3")):
        first = attend(*data)
        for _ in range(3):
            assert same_bits(attend(*data), first)
    assert len(checked) == 2


def test_the_empty_state_that_is_remembered_stays_empty():
    data, options = arrays(), _call.Options(causal=True, return_state=True)
    for _ in range(3):
        _, state = kt.linear_attention(*data, "elu", causal=True, return_state=True)
        kt.linear_attention(*data, "elu", causal=True, state=state)
    remembered = _call.check_call("linear_attention", *data, "elu", options)
    assert _call._check_kind.cache_info().currsize == 1
    assert (remembered.data.carry.sums.hi == 0).all()


def test_weights_are_hashed_only_for_a_state(monkeypatch):
    seen = []
    monkeypatch.setattr(maps._base, "digest", lambda x: seen.append(x) or "hash")
    learned, data = maps.Hedgehog(np.eye(4)), arrays()
    kt.linear_attention(*data, learned, causal=True)
    assert not seen
    kt.linear_attention(*data, learned, causal=True, return_state=True)
    assert seen


def test_tensors_too(checked):
    torch = pytest.importorskip("torch")
    data = [torch.from_numpy(x) for x in arrays()]
    outputs = [kt.linear_attention(*data, "elu", causal=True) for _ in range(3)]
    assert len(checked) == 1
    assert all(torch.equal(x, outputs[0]) for x in outputs)


def test_the_state_and_the_head_axis_are_the_same(checked):
    q, k, v = (x[0] for x in arrays())
    first, second = (
        kt.linear_attention(q, k, v, "favor:features=8", causal=True, return_state=True)
        for _ in range(2)
    )
    assert len(checked) == 1
    assert first[0].shape == q.shape
    assert same_bits(first[0], second[0])
    assert same_bits(first[1].U, second[1].U)
    assert first[1].fingerprint == second[1].fingerprint
    assert (first[1].start, first[1].stop) == (second[1].start, second[1].stop) == (0, 9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scale": True}, "scale to be a number"),
        ({"chunk_size": True}, "chunk_size to be a whole number"),
        ({"window": False}, "window to be a whole number"),
        ({"on_zero": ["raise"]}, "on_zero must be"),
        ({"far": 1.0}, "far sets the units"),
        ({"mask": np.ones(9)}, "mask must be boolean"),
        ({"state": 3}, "state must be a State"),
    ],
    ids=lambda x: next(iter(x)) if isinstance(x, dict) else "",
)
def test_what_is_wrong_is_refused_after_what_is_equal_and_right(options, message):
    """True == 1, but True is not a scale."""
    data = arrays()
    for _ in range(2):
        kt.linear_attention(*data, "elu", causal=True, scale=1, chunk_size=1, window=0)
    right = {"causal": True, "scale": 1, "chunk_size": 1, "window": 0}
    with pytest.raises((TypeError, ValueError), match=message):
        kt.linear_attention(*data, "elu", **{**right, **options})


def test_other_shapes_dtypes_and_kinds_are_other_calls(checked):
    kt.linear_attention(*arrays(), "elu")
    q, k, v = arrays()
    for wrong in ((q[..., :3], k, v), (q, k[:, :8], v), (q.astype("f4"), k, v), (list(q), k, v)):
        with pytest.raises((TypeError, ValueError)):
            kt.linear_attention(*wrong, "elu")
    with pytest.raises(TypeError, match="masked array"):
        kt.linear_attention(np.ma.array(q, mask=q > 0), k, v, "elu")
    out = kt.linear_attention(*arrays(dtype=np.float32), "elu")
    assert out.dtype == np.float32


def test_weights_that_change_are_looked_at_each_time(checked):
    weight = np.random.default_rng(5).standard_normal((4, 3))
    learned, data = maps.Hedgehog(weight), arrays()
    first = kt.linear_attention(*data, learned, causal=True, return_state=True)[1]
    weight *= 2
    second = kt.linear_attention(*data, learned, causal=True, return_state=True)[1]
    assert len(checked) == 2
    assert first.fingerprint != second.fingerprint


def test_little_is_remembered():
    most = _call._check_kind.cache_info().maxsize
    for n in range(1, most + 20):
        kt.linear_attention(*arrays(n), "elu")
    assert _call._check_kind.cache_info().currsize == most
