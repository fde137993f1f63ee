"""AttentionData, the synthetic data sets, and the embedded sample."""

import math
from importlib import resources

import numpy as np
import pytest
from cases import each

import kerneltrick as kt
from kerneltrick.analysis._data import SAMPLE, AttentionData, sample
from kerneltrick.analysis._synthetic import synthetic_attention


def grouped(seed=0, **keywords):
    """3 layers, 6 query heads on 2 key heads, 10 tokens."""
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((3, 6, 10, 4), dtype=np.float32)
    k = rng.standard_normal((3, 2, 10, 4), dtype=np.float32)
    v = rng.standard_normal((3, 2, 10, 5), dtype=np.float32)
    return AttentionData(q, k, v, layers=(0, 2, 5), **keywords)


def attend(data):
    return kt.softmax_attention(data.q, data.k, data.v, scale=data.scale)


def test_a_selected_head_attends_as_it_did_among_all():
    data = grouped()
    whole = attend(data)
    chosen = data.select(layers=[5, 0], heads=[4, 1, 5])
    assert chosen.layers == (5, 0)
    assert chosen.heads == (4, 1, 5)
    assert chosen.k.shape[1] == chosen.v.shape[1] == 3
    np.testing.assert_allclose(attend(chosen), whole[[2, 0]][:, [4, 1, 5]], rtol=1e-6)
    again = chosen.select(layers=[0], heads=[5])  # by number, not by position
    np.testing.assert_allclose(attend(again)[0, 0], whole[0, 5], rtol=1e-6)
    assert data.select(layers=[2]).k.shape == (1, 2, 10, 4)
    for wrong, message in (
        ({"layers": [1]}, "no layer 1; there are 0, 2, 5"),
        ({"heads": [-1]}, "no head -1; there are 0, 1, 2, 3, 4, 5"),
        ({"heads": []}, "at least one head"),
        ({"layers": [2, 2]}, "layer 2 is chosen twice"),
    ):
        with pytest.raises(ValueError, match=message):
            data.select(**wrong)


@each(
    "change, error, message",
    [
        ({"layers": (0, 1, 1)}, ValueError, "3 distinct numbers"),
        ({"heads": (1, 2)}, ValueError, "6 distinct numbers"),
        ({"scale": -1.0}, ValueError, "scale > 0"),
        ({"mask": np.ones(10)}, TypeError, "boolean"),
        ({"mask": np.ones(9, bool)}, ValueError, r"\(10,\), not \(9,\)"),
        ({"tokens": ("a",)}, ValueError, "1 token texts for 10"),
        ({"excluded": ((1, 0),)}, ValueError, "no layer 1 head 0"),
        ({"q": np.ones((3, 5, 10, 4), np.float32)}, ValueError, "multiple"),
        ({"q": np.ones((3, 6, 10, 4), np.int64)}, TypeError, "floating-point"),
        ({"q": np.ones((3, 6, 9, 4), np.float32), "causal": True}, ValueError, "as many queries"),
        ({"q": np.ones((3, 6, 9, 4), np.float32), "tokens": ("",) * 10}, ValueError, "as many"),
    ],
)
def test_data_that_do_not_fit_together_are_refused(change, error, message):
    fields = {name: getattr(grouped(), name) for name in ("q", "k", "v", "layers")}
    with pytest.raises(error, match=message):
        AttentionData(**{**fields, **change})


def test_arrays_of_fewer_axes_and_other_libraries_are_taken():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    x = np.random.default_rng(0).standard_normal((2, 3, 7, 4))
    for axes in (2, 3, 4):
        part = x[(0,) * (4 - axes)]
        data = AttentionData.from_arrays(part, part, part)
        assert data.q.shape == (1,) * (4 - axes) + part.shape
    data = AttentionData.from_arrays(*(torch.tensor(x),) * 3, layers=[4, 9], mask=torch.ones(7) > 0)
    np.testing.assert_array_equal(data.k, x)
    assert (data.layers, data.mask.dtype) == ((4, 9), np.bool_)
    with pytest.raises(ValueError, match=r"q is \(1, 2, 3, 7, 4\)"):
        AttentionData.from_arrays(x[None], x[None], x[None])


def test_heads_with_nan_are_named_and_do_not_spread():
    data = grouped()
    data.k[1, 1, 3, :2] = math.nan, math.inf  # key head 1 of layer 2: query heads 3, 4, 5
    data.q[2, 0, 9, 1] = -math.inf
    data.q[1, 4, 0, 0] = math.nan
    before = attend(grouped())
    clean, notes = data.sanitized()
    assert notes == [
        "layer 2 head 3: k holds 2 values that are NaN or infinite: left out",
        "layer 2 head 4: q holds 1 value and k holds 2 values that are NaN or infinite: left out",
        "layer 2 head 5: k holds 2 values that are NaN or infinite: left out",
        "layer 5 head 0: q holds 1 value that is NaN or infinite: left out",
    ]
    assert clean.excluded == ((2, 3), (2, 4), (2, 5), (5, 0))
    after = attend(clean)
    assert np.isfinite(after).all()
    for row, layer in enumerate(clean.layers):
        for head in clean.heads:
            if (layer, head) not in clean.excluded:
                np.testing.assert_array_equal(after[row, head], before[row, head])
    assert clean.q.dtype == np.float32
    assert clean.select(heads=[0, 4]).excluded == ((2, 4), (5, 0))
    assert clean.sanitized() == (clean, [])


@each("name", "qkv")
def test_heads_whose_products_overflow_are_named_and_do_not_spread(name):
    data = AttentionData.from_arrays(*np.random.default_rng(0).standard_normal((3, 2, 10, 4)))
    getattr(data, name)[0, 1, 3] = -1e300
    clean, notes = data.sanitized()
    told = f"{name} holds values up to 1e+300, whose products overflow"
    assert notes == [f"layer 0 head 1: {told}: left out"]
    assert clean.excluded == ((0, 1),)
    assert clean.sanitized() == (clean, [])
    getattr(data, name)[0, 1, 3] = 1e12
    assert data.sanitized() == (data, [])
    assert len(data.sanitized(1e9)[1]) == (name == "q")


def test_padding_is_removed_before_anything_is_judged():
    mask = np.arange(10) >= 3
    data = grouped(mask=mask, tokens=tuple("abcdefghij"))
    data.v[:, :, :3] = math.nan
    clean, notes = data.sanitized()
    assert notes == ["3 padding tokens: left out"]
    assert (clean.mask, clean.tokens, clean.excluded) == (None, tuple("defghij"), ())
    np.testing.assert_array_equal(clean.k, data.k[:, :, 3:])
    expected = kt.softmax_attention(data.q, data.k, data.v, mask=mask)
    np.testing.assert_allclose(attend(clean), expected[:, :, 3:], rtol=1e-6)
    with pytest.raises(ValueError, match="leaves no token"):
        grouped(mask=np.zeros(10, bool)).sanitized()


@each("kind", ["gaussian", "clustered", "needle"])
def test_synthetic_numbers_have_the_scale_and_shape_asked_for(kind):
    data = synthetic_attention(f"{kind}:n=2000,d=16,heads=3,scale=2", seed=1)
    assert data.q.shape == data.k.shape == data.v.shape == (1, 3, 2000, 16)
    assert data.q.dtype == data.k.dtype == data.v.dtype == np.float32
    assert data.k.std() == pytest.approx(2, rel=0.15)
    assert data.v.std() == pytest.approx(1, rel=0.02)
    assert "seed 1" in data.source
    again = synthetic_attention(f"{kind}:n=2000,d=16,heads=3,scale=2", seed=1)
    np.testing.assert_array_equal(data.q, again.q)
    other = synthetic_attention(f"{kind}:n=2000,d=16,heads=3,scale=2", seed=2)
    assert not np.array_equal(data.q, other.q)
    assert abs(np.corrcoef(data.q[0, 0].ravel(), data.q[0, 1].ravel())[0, 1]) < 0.2  # per head


def test_every_kind_has_its_own_random_numbers():
    kinds = [
        synthetic_attention(f"{kind}:n=64,d=8") for kind in ("gaussian", "clustered", "needle")
    ]
    omega = kt.maps.get("favor:features=64,seed=0").projection(8)
    streams = [data.v.ravel()[:256] for data in kinds] + [np.asarray(omega).ravel()[:256]]
    assert np.abs(np.corrcoef(streams) - np.eye(4)).max() < 0.3


def test_clustered_queries_attend_to_their_topic():
    text = "clustered:n=600,d=256,clusters=6,spread=0.1"
    q, k = (getattr(synthetic_attention(text, seed=3), name)[0, 0].astype(float) for name in "qk")
    scores = q @ k.T / 16
    near = scores > scores.max() / 2  # the same topic or not: nothing lies between
    assert 0.1 < near.mean() < 0.25  # one in six
    np.testing.assert_array_equal(near, near.T)
    np.testing.assert_array_equal(near @ near > 0, near)  # being of one topic is transitive
    loose, tight = (
        synthetic_attention(f"clustered:n=600,clusters=6,spread={spread}") for spread in (2, 0.1)
    )
    assert entropy(tight) < entropy(loose)


def entropy(data):
    _, weights = kt.softmax_attention(data.q, data.k, data.v, return_weights=True)
    return -(weights * np.log(np.maximum(weights, 1e-30))).sum(-1).mean()


@each("strength", [12])
def test_one_key_in_the_past_matches_every_query(strength):
    data = synthetic_attention(f"needle:n=400,d=32,strength={strength},heads=2", seed=4)
    scores = data.q[0].astype(float) @ data.k[0].astype(float).mT / math.sqrt(32)
    exact = np.isclose(scores, strength, atol=1e-4)
    assert exact.any(-1).all()
    match = exact.argmax(-1)
    assert (match <= np.arange(400)).all()
    assert len(np.unique(match)) > 100
    share = (scores.argmax(-1) == match).mean()
    assert share > 0.95


@each(
    "text, message",
    [
        ("clusterd", "did you mean 'clustered'"),
        ("gaussian:clusters=3", "no parameter 'clusters'"),
        ("clustered:clusters=0", "whole number ≥ 1, not 0"),
        ("clustered:spread=-1", "number > 0, not -1"),
        ("needle:strength=nan", "number > 0, not nan"),
        ("needle:strength", "expected key=value"),
        ("needle:n=4,n=5", "n twice"),
    ],
)
def test_wrong_texts_are_explained(text, message):
    with pytest.raises(ValueError, match=message):
        synthetic_attention(text)


def test_the_sample_is_small_whole_and_says_where_it_is_from():
    folder = resources.files("kerneltrick.analysis").joinpath("sample")
    assert len(folder.joinpath(SAMPLE).read_bytes()) <= 1_000_000
    note = folder.joinpath("NOTE.md").read_text(encoding="utf-8")
    assert "Apache-2.0" in note
    assert "public domain" in note
    data = sample()
    assert data.q.shape == data.k.shape == data.v.shape == (3, 12, 128, 32)
    assert (data.layers, data.heads) == ((0, 2, 5), tuple(range(12)))
    assert data.causal is False
    assert data.scale == pytest.approx(1 / math.sqrt(32))
    assert data.q.dtype == np.float32
    assert len(data.tokens) == 128
    assert data.tokens[:4] == ("[CLS]", "call", "me", "is")
    clean, notes = data.sanitized()
    assert notes == []
    assert clean.excluded == ()
    # Real attention is peaked in places, unlike noise.
    _, weights = kt.softmax_attention(data.q, data.k, data.v, return_weights=True)
    assert weights.max() > 0.9
    assert weights.std() > 2 / 128
