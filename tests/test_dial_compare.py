"""Maps with windows in the comparison: weights, errors, curves and verdicts."""

import dataclasses
import json
import math

import numpy as np
import pytest
from cases import each

import kerneltrick as kt
from kerneltrick import analysis
from kerneltrick.analysis import _blocks
from kerneltrick.analysis._types import WindowCurve, WindowPoint
from kerneltrick.analysis._verdict import _needed_windows
from kerneltrick.analysis._windows import head_errors, window_lengths
from kerneltrick.cli._arguments import split_maps

SETTINGS = [
    "elu@window=4,sinks=1",
    "hedgehog@window=5",
    "hedgehog:activation=exp@window=2,gain=-2",
    "favor:features=16@window=3,sinks=2,gain=-1",
    "taylor:order=2@sinks=2,relative",
    "relu@window=3",
    "softmax@window=6,sinks=1",
    "softmax",
    "poly:degree=2@window=64",
]


@pytest.fixture(scope="module")
def arrays():
    return np.random.default_rng(0).standard_normal((3, 2, 40, 8))


@pytest.fixture(scope="module")
def result():
    data = analysis.synthetic_attention("clustered:n=32,d=4,heads=2")
    texts = ["elu", "relu", "elu@window=8,sinks=1", "softmax@window=8,sinks=1", "softmax"]
    return analysis.compare(data, texts, measure=False)


@each("causal", [False, True])
@each("text", SETTINGS)
def test_weights_are_those_of_linear_attention(arrays, text, causal):
    q, k, v = arrays
    problem = _blocks.check_problem("test", q, k, v, text, causal, None, None)
    found = np.zeros((2, 40, 40))
    for block in _blocks.blocks(problem, 7):
        found[:, block.rows, : block.weights.shape[-1]] = block.weights
    expected = kt.attention_weights(q, k, text, causal=causal, on_zero="zero")
    np.testing.assert_allclose(found, expected, atol=1e-14)


def test_near_scores_far_below_do_not_underflow():
    q, k, v = np.zeros((3, 1, 6, 2))
    q[...], k[...] = 40.0, -40.0  # scores of −2263
    v[0, :, 0] = np.arange(6)
    quality = analysis.analyze_map(q, k, v, "relu@window=1")
    assert quality.undefined_rows == 0


def test_quality_knows_the_window(arrays):
    q, k, v = arrays
    truth = kt.softmax_attention(q, k, v)
    far = kt.Far(np.array([-1.0, 2.0]))  # a gain for each head
    gains = dataclasses.replace(kt.Dial.get("elu@window=2"), far=far)
    for text in (gains, "elu@window=8,sinks=1", "elu@window=40"):
        error = np.linalg.norm(kt.linear_attention(q, k, v, text) - truth) / np.linalg.norm(truth)
        found = analysis.analyze_map(q, k, v, text).output_relative_error
        assert found == pytest.approx(error, abs=1e-14)
    assert found < 1e-14
    exact = analysis.analyze_map(q, k, v, "softmax")
    assert exact.output_relative_error < 1e-14
    assert exact.gradient_ratio == pytest.approx(1, abs=1e-6)
    assert exact.float32_error < 1e-5


def test_state_bytes_count_near_tokens_and_sinks(arrays):
    q, k, v = arrays
    of = {
        text: analysis.analyze_map(q, k, v, text).state_bytes
        for text in ("elu", "elu@window=5,sinks=2", "softmax@window=5", "softmax")
    }
    token = 8 * 2 * (8 + 8)
    assert of["elu@window=5,sinks=2"] == of["elu"] + 6 * token
    assert of["softmax@window=5"] == 4 * token
    assert of["softmax"] == 40 * token


def test_window_curves_turn_the_dial_for_the_best_maps_and_the_window_alone(result):
    assert [curve.map for curve in result.windows][-1] == "softmax"
    assert {curve.map for curve in result.windows} == {"elu", "relu", "softmax"}
    rows = {row.map: row for row in result.maps}
    assert rows["softmax"].summary.output_error < 1e-12
    assert math.isnan(rows["softmax@window=8,sinks=1"].summary.limit_mse)
    assert rows["elu"].summary.limit_mse > 0
    for curve in result.windows:
        assert [point.window for point in curve.points] == list(window_lengths(32))
    elu = next(curve for curve in result.windows if curve.map == "elu")
    assert elu.points[0].map == "elu"
    assert elu.points[0].whole_error == pytest.approx(rows["elu"].summary.whole_error)
    at8 = next(point for point in elu.points if point.window == 8)
    assert at8.map == "elu@window=8,sinks=1"
    assert at8.output_error == pytest.approx(rows[at8.map].summary.output_error)
    assert at8.heads[0][1] == pytest.approx(rows[at8.map].heads[0][1].output_error)
    values = json.loads(result.to_json())["windows"]
    assert values[0]["points"][0]["window"] == 0


def test_head_errors_are_those_of_the_heads(arrays):
    q, k, v = arrays
    dial = kt.Dial.get("elu@window=3,sinks=1")
    lost, size = head_errors(q, k, v, dial, True, 8**-0.5, 0)
    ours = kt.linear_attention(q, k, v, dial, causal=True)
    truth = kt.softmax_attention(q, k, v, causal=True)
    np.testing.assert_allclose(lost, ((ours - truth) ** 2).sum((-2, -1)))
    np.testing.assert_allclose(size, (truth**2).sum((-2, -1)))


def words(*errors_by_window):
    """Return the verdict on heads with these errors at windows 0, 4 and 16."""
    points = tuple(
        WindowPoint(window, "elu", math.nan, math.nan, (tuple(row),))
        for window, row in zip((0, 4, 16), errors_by_window, strict=True)
    )
    names = [[f"0.{head}" for head in range(len(errors_by_window[0]))]]
    return _needed_windows([WindowCurve("elu", points)], names)


def test_the_verdict_says_what_window_heads_need():
    text = words([0.5, 0.05, 0.5], [0.08, 0.05, 0.5], [0.01, 0.01, 0.5])
    assert text.startswith("An exact window of 4 tokens, plus the first token, brings half")
    assert "in head 0.2 (layer.head) no window up to 16 does" in text
    assert "No exact window up to 16" in words([0.5] * 2, [0.5] * 2, [0.5] * 2)
    assert "does" not in words([0.5] * 2, [0.5] * 2, [0.5] * 2)
    assert "without a window" in words([0.05] * 2, [0.05] * 2, [0.05] * 2)
    assert words([math.nan], [math.nan], [math.nan]) == ""


def test_lists_of_settings_are_unambiguous():
    text = "elu,relu@window=16,sinks=1,relative,favor:features=8,kind=trig@sinks=2 softmax"
    assert split_maps([text]) == [
        "elu",
        "relu@window=16,sinks=1,relative",
        "favor:features=8,kind=trig@sinks=2",
        "softmax",
    ]


def test_heads_with_windows_of_their_own_are_compared_as_they_attend():
    data = analysis.synthetic_attention("clustered:n=32,d=4,heads=4")
    mixed, limited = analysis.compare(
        data, ["elu@window=8,sinks=1,whole=0+2", "elu@window=8,sinks=1"], measure=False
    ).maps
    errors = [[head.output_error for head in row.heads[0]] for row in (mixed, limited)]
    assert [i for i, error in enumerate(errors[0]) if error < 1e-12] == [0, 2]
    assert errors[0][1::2] == errors[1][1::2]
    n, d = data.q.shape[2:]
    each = limited.state_bytes // 4
    assert mixed.state_bytes == 2 * each + 2 * n * 2 * d * data.q.itemsize
    chosen = analysis.compare(data.select(heads=[2, 3]), ["elu@whole=2"], measure=False).maps[0]
    assert chosen.heads[0][0].output_error < 1e-12 < chosen.heads[0][1].output_error
    with pytest.raises(ValueError, match="only 4 key–value heads, 0 to 3"):
        analysis.compare(data, ["elu@window=8,whole=4"], measure=False)
