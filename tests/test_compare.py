"""The comparison: its numbers against independent computations, its limit, fits and verdict."""

import collections
import dataclasses
import io
import json
import math
import tracemalloc

import numpy as np
import pytest
from cases import each
from hypothesis import given
from hypothesis import strategies as st

import kerneltrick as kt
from kerneltrick import analysis, engines, maps
from kerneltrick.analysis import _blocks, _compare, _curves, _limit, _sampled, _timing
from kerneltrick.analysis._limit import dyadic_blocks, weight_limit
from kerneltrick.analysis._store import Store, finish, run_key
from kerneltrick.analysis._types import FORMAT, METRICS, HeadMetrics
from kerneltrick.analysis._verdict import verdict
from kerneltrick.cli._table import show
from kerneltrick.engines import core

FIVE = ["elu", "relu2", "favor:features=64", "hedgehog", "taylor:order=2"]


pytestmark = pytest.mark.xdist_group("compare")  # the sample is compared once


@pytest.fixture(scope="module")
def sample_result():
    return analysis.compare(analysis.sample(), FIVE, measure=False)


@pytest.fixture
def hasty(monkeypatch):
    """Three short lengths, each timed once."""
    monkeypatch.setattr(_timing, "LENGTHS", (8, 16, 32))
    monkeypatch.setattr(_timing, "SECONDS", 0.0)


def softmax(scores):
    e = np.exp(scores - scores.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


@each("text", FIVE)
def test_the_sample_agrees_with_its_heads_alone_and_with_singular_values(sample_result, text):
    """`analyze_map` itself is compared with definitions in test_analysis.py."""
    data = analysis.sample()
    report = sample_result.maps[FIVE.index(text)]
    for i, j in ((0, 0), (1, 7), (2, 11)):
        q, k, v = (x[i, j].astype(np.float64) for x in (data.q, data.k, data.v))
        alone, found = analysis.analyze_map(q, k, v, text), report.heads[i][j]
        for name in ("mse", "max_diff", "correlation", "kl", "total_variation", "entropy",
                     "top1_agreement", "top8_agreement"):  # fmt: skip
            expected = pytest.approx(getattr(alone.weights, name), rel=1e-8, abs=1e-12, nan_ok=True)
            assert getattr(found, name) == expected, name
        assert found.output_error == pytest.approx(alone.output_relative_error)
        s = softmax(q @ k.T / math.sqrt(32))
        sigma = np.linalg.svd(s, compute_uv=False)
        p = sigma / sigma.sum()
        bound = (sigma[report.features :] ** 2).sum() / 128**2
        assert found.limit_mse == pytest.approx(bound, rel=1e-6, abs=1e-20)
        look = sample_result.softmax.heads[i][j]
        assert look.entropy == pytest.approx(-(s * np.log(s)).sum(-1).mean(), rel=1e-9)
        assert look.top1_weight == pytest.approx(s.max(-1).mean(), rel=1e-12)
        assert look.effective_rank == pytest.approx(np.exp(-(p * np.log(p)).sum()), rel=1e-9)


def test_the_result_is_json_and_shows_in_notebooks(sample_result):
    values = json.loads(sample_result.to_json(), parse_constant=pytest.fail)
    assert values["format"] == FORMAT
    assert values["data"]["tokens"][1:3] == ["call", "me"]
    again = HeadMetrics.from_dict(values["maps"][1]["heads"][0][0])
    original = sample_result.maps[1].heads[0][0]
    for field in dataclasses.fields(HeadMetrics):
        one, two = getattr(again, field.name), getattr(original, field.name)
        assert one == two or (math.isnan(one) and math.isnan(two))
    assert "<table>" in sample_result._repr_html_()


@given(seed=st.integers(0, 1000), m=st.integers(1, 12), causal=st.booleans())
def test_no_map_beats_the_limit(seed, m, causal):
    """Random positive features, and the best of a few maps: never below the bound."""
    rng = np.random.default_rng(seed)
    q, k = 1.5 * rng.standard_normal((2, 24, 3))
    limit = weight_limit(q, k, 1.0, causal)
    weight = rng.standard_normal((3, m))

    def random_map(x):
        return np.exp(x @ weight)

    ours = analysis.compare_weights(q, k, random_map, causal=causal, softmax_scale=1.0)
    assert ours.mse >= limit.mse(m) * (1 - 1e-9)


def test_a_uniform_causal_head_has_limit_zero():
    """φ = 1 reproduces uniform causal attention exactly, although its matrix has full rank."""
    q, k = np.zeros((20, 3)), np.zeros((20, 3))
    limit = weight_limit(q, k, 1.0, causal=True)
    assert limit.mse(1) == pytest.approx(0, abs=1e-30)
    assert limit.effective_rank > 5
    ours = analysis.compare_weights(q, k, lambda x: np.ones_like(x[..., :1]), causal=True)
    assert ours.mse < 1e-30


@given(n=st.integers(1, 70))
def test_dyadic_blocks_cover_the_lower_triangle_once(n):
    count = np.zeros((n, n), int)
    for low, mid, high in dyadic_blocks(n):
        count[mid:high, low:mid] += 1
    np.testing.assert_array_equal(count, np.tri(n, k=-1, dtype=int))


def test_the_limit_above_2048_says_that_it_is_an_estimate(monkeypatch):
    for module in (_limit, _sampled):
        monkeypatch.setattr(module, "WHOLE_UP_TO", 700)  # 2048 takes seconds
    q, k = np.random.default_rng(0).standard_normal((2, 720, 4))
    estimate, causal = (weight_limit(q, k, 0.5, causal) for causal in (False, True))
    for limit in (estimate, causal):
        assert limit.kind == "estimate"
        assert limit.mse(2) > limit.mse(20) >= 0
    exact = weight_limit(q[:700], k[:700], 0.5, False)
    assert exact.kind != "estimate"
    assert estimate.mse(8) == pytest.approx(exact.mse(8), rel=0.2)


def test_rank_correlation_is_spearmans():
    rng = np.random.default_rng(1)
    q, k, v = rng.standard_normal((3, 30, 4))
    for causal in (False, True):
        found = analysis.analyze_map(q, k, v, "relu", causal=causal, rows=7).rank_correlation
        a = kt.attention_weights(q, k, "relu", causal=causal, on_zero="zero")
        s = kt.attention_weights(q, k, lambda x: x, causal=causal, normalize=False) / 2
        values = []
        for i in range(30):
            seen = slice(0, i + 1) if causal else slice(None)
            if a[i].any():
                pair = [ranks(x) for x in (a[i, seen], s[i, seen])]
                if min(np.ptp(x) for x in pair) > 0:
                    values.append(np.corrcoef(*pair)[0, 1])
        assert found == pytest.approx(np.mean(values), rel=1e-9)


def ranks(x):
    """Compute mean ranks by counting."""
    return np.array([(x < y).sum() + ((x == y).sum() - 1) / 2 for y in x])


def test_gradients_agree_with_autograd():
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(2)
    q, k, v = rng.standard_normal((3, 1, 12, 4))  # 12 rows, which are all evaluated
    for text in ("elu", "relu", "taylor:order=2"):
        for causal in (False, True):
            problem = analysis._blocks.check_problem("t", q, k, v, text, causal, None, None)
            ratio, dead = _sampled.query_gradients(problem, 0)
            generator = np.random.default_rng([0, *b"gradients"])
            target = np.stack([generator.standard_normal((1, 4)) for _ in range(12)], axis=1)
            norms = []
            for call in (kt.linear_attention, kt.softmax_attention):
                leaf = torch.asarray(q).requires_grad_()
                extra = (text,) if call is kt.linear_attention else ()
                out = call(
                    leaf, torch.asarray(k), torch.asarray(v), *extra, causal=causal, on_zero="zero"
                )
                (out * torch.asarray(target)).sum().backward()
                rows = torch.isfinite(leaf.grad).all(-1)
                norms.append((leaf.grad[rows].norm().item(), (leaf.grad == 0).double().mean()))
            if text != "relu":
                assert ratio == pytest.approx(norms[0][0] / norms[1][0], rel=1e-5)
            if text == "relu" and not causal:
                assert dead == pytest.approx(float(norms[0][1]), abs=0.05)
                assert dead > 0.3


def test_float32_losses_are_counted():
    q, k, v = np.random.default_rng(3).standard_normal((3, 1, 20, 4))
    calm = analysis.analyze_map(q, k, v, "exp")
    assert (calm.overflows, calm.underflows) == (0, 0)
    assert calm.float32_error < 1e-5
    wild = analysis.analyze_map(q * 100, k * 100, v, "exp")
    assert wild.overflows > 0
    assert wild.underflows > 0


class TestTiming:
    def test_fit_recovers_a_polynomial(self):
        n = [128, 256, 512, 1024]
        assert _timing.fit(n, [2 + 0.01 * x for x in n], 1) == pytest.approx((2, 0.01))
        quadratic = [1 + 1e-3 * x + 1e-5 * x * x for x in n]
        assert _timing.fit(n, quadratic, 2) == pytest.approx((1, 1e-3, 1e-5))
        assert min(_timing.fit([1, 2, 4], [1.0, 1.5, 4.0], 2)) >= 0

    @given(a=st.floats(0.01, 10), b=st.floats(1e-4, 1e-1), c=st.floats(1e-7, 1e-3))
    def test_crossover_is_where_the_fits_meet(self, a, b, c):
        n = _timing.crossover((a, b), (0.0, 0.0, c))
        if n is not None and n > 1:
            assert a + b * n == pytest.approx(c * n * n, rel=1e-6)

    def test_no_crossover(self):
        assert _timing.crossover((0.0, 1.0), (0.0, 0.5, 0.0)) is None
        assert _timing.crossover((0.0, 1.0), (1.0, 2.0, 0.1)) == 1.0

    @pytest.mark.skipif(core() is None, reason="installed without the compiled core")
    def test_softmax_is_timed_as_the_compiled_one(self, monkeypatch, hasty):
        ran = []
        native = engines.ENGINES["attention"]["native"]

        def run(prepared, data):
            ran.append(prepared.rule)
            return native.run(prepared, data)

        monkeypatch.setitem(
            engines.ENGINES["attention"], "native", dataclasses.replace(native, run=run)
        )
        assert min(_timing.measure_softmax(2, 4, 4, True)) > 0
        assert {(str(rule.feature_map), rule.causal) for rule in ran} == {("softmax", True)}
        times = _timing.timing("elu", 2, [1.0, 2.0, 4.0], [1.0, 2.0, 4.0])
        assert times.baseline == "compiled softmax"

    def test_without_the_core_softmax_is_timed_in_numpy_and_said_to_be(self, monkeypatch, hasty):
        monkeypatch.setattr(_timing, "core", lambda: None)
        monkeypatch.setattr(_timing, "softmax_attention", pytest.fail)
        assert min(_timing.measure_softmax(2, 4, 4, True)) > 0
        times = _timing.timing("elu", 2, [1.0, 2.0, 4.0], [1.0, 2.0, 4.0])
        assert times.baseline == "softmax written in NumPy"

    def test_lean_softmax_is_softmax(self):
        q, k, v = np.random.default_rng(4).standard_normal((3, 2, 20, 8)).astype(np.float32)
        for causal in (False, True):
            expected = kt.softmax_attention(q, k, v, causal=causal)
            found = _timing.lean_softmax(q, k, v, causal)
            np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def test_curves_are_the_errors_of_their_maps():
    data = analysis.sample().select([0], [1, 2])
    q, k, v = data.q[0], data.k[0], data.v[0]
    mse, error = _curves.errors(q, k, v, "taylor:order=2", False, 32**-0.5, 0)
    quality = analysis.analyze_map(q, k, v, "taylor:order=2")
    assert mse == pytest.approx(quality.weights.mse)
    assert error == pytest.approx(quality.output_relative_error)
    for texts in _curves.families(32).values():
        sizes = [maps.get(text).dim(32) for text in texts]
        assert sizes == sorted(sizes)
        assert len(sizes) >= 2


def test_uniform_weights_are_what_a_map_is_measured_against(sample_result):
    data = analysis.sample()
    v = data.v.astype(np.float64)
    scores = data.q.astype(np.float64) @ data.k.mT.astype(np.float64) / math.sqrt(32)
    truth = softmax(scores) @ v
    lost = np.broadcast_to(v.mean(-2, keepdims=True), truth.shape) - truth
    per_head = np.linalg.norm(lost, axis=(-2, -1)) / np.linalg.norm(truth, axis=(-2, -1))
    found = sample_result.uniform
    assert (found.map, found.features) == ("uniform", 1)
    assert found.summary.output_error == pytest.approx(per_head.mean())
    assert found.summary.whole_error == pytest.approx(np.linalg.norm(lost) / np.linalg.norm(truth))
    assert "uniform" in sample_result._repr_html_()


def of_error(report, error, **other):
    """Make a report of one head with this output error."""
    head = dataclasses.replace(
        report.summary, output_error=error, whole_error=error, times_limit=math.nan
    )
    return dataclasses.replace(report, summary=head, heads=((head,),), **other)


def test_verdict_names_the_best_map_and_the_lost_heads(sample_result):
    text = sample_result.verdict
    errors = {r.map: r.summary.output_error for r in sample_result.maps}
    assert text.startswith(min(errors, key=errors.get))
    elu, uniform = sample_result.maps[0], of_error(sample_result.uniform, 0.8)
    fine = of_error(elu, 0.1)
    lost = of_error(elu, 0.9).heads[0][0]
    mixed = dataclasses.replace(fine, heads=((*fine.heads[0], lost),))
    words = verdict([mixed], uniform, [["3.6", "3.7"]], (), None)
    assert words.headline == "elu (m = 32) can replace softmax here: its output is off by 10 %."
    assert "are off by 80 %: elu closes 88 % of that gap" in words.findings[0]
    assert (
        "Keep softmax in head 3.7 (layer.head): all maps with m ≤ 256 are off" in words.findings[1]
    )
    words = verdict([of_error(elu, 0.2)], uniform, [["3.6"]], (), None)
    assert words.headline == "elu (m = 32) comes closest to softmax, but its output is off by 20 %."
    words = verdict([of_error(elu, 0.9)], uniform, [["3.6"]], (), None)
    assert "off by 80 %: no map here does better." in words.findings[0]
    assert "of that gap" not in str(words)


def test_the_verdict_is_a_headline_and_at_most_four_findings(sample_result):
    assert 1 <= len(sample_result.findings) <= 4
    lines = sample_result.verdict.split("\n")
    assert lines[0] == sample_result.headline
    assert lines[1:] == [f"• {finding}" for finding in sample_result.findings]
    assert all(finding.endswith(".") for finding in (lines[0], *sample_result.findings))
    show(sample_result, out := io.StringIO())
    printed = out.getvalue().splitlines()
    start = next(
        i for i, line in enumerate(printed) if line.startswith(sample_result.headline[:20])
    )
    assert sum(line.startswith("  • ") for line in printed[start:]) == len(sample_result.findings)
    found = sample_result._repr_html_()
    assert found.count("<li>") == len(sample_result.findings)


def test_verdict_speaks_of_measured_lengths_and_names_what_softmax_was(monkeypatch, sample_result):
    elu, uniform = of_error(sample_result.maps[0], 0.2), of_error(sample_result.uniform, 0.8)
    monkeypatch.setattr(_timing, "LENGTHS", (128, 256, 512, 1024))
    timing = _timing.timing("elu", 12, [1.0, 2.0, 4.0, 8.0], [2.0, 8.0, 32.0, 128.0])
    timing = dataclasses.replace(timing, baseline="compiled softmax")

    def words(crossover):
        changed = dataclasses.replace(timing, crossover=crossover)
        return verdict([elu], uniform, [["3.6"]], (), changed).findings[-1]

    assert "compiled softmax at every length measured, from n = 128 on" in words(50.0)
    assert "16 times as fast at n = 1024, the longest length measured" in words(50.0)
    assert "from n ≈ 300 on" in words(300.0)
    assert "extrapolated, it is faster from n ≈ 5000 on" in words(5000.0)
    assert "is never faster than compiled softmax" in words(None)

    def legend(found):
        show(dataclasses.replace(sample_result, timing=found), out := io.StringIO())
        return " ".join(out.getvalue().split())

    assert "the map is faster than compiled softmax." in legend(timing)
    assert "the map is faster than softmax." in legend(None)


def test_times_of_another_softmax_are_not_taken_up_again(monkeypatch, hasty, tmp_path):
    data = analysis.synthetic_attention("gaussian:n=16,d=2")
    for name, ms in (("one softmax", 1.0), ("another softmax", 2.0)):
        for module in (_timing, _compare):
            monkeypatch.setattr(module, "baseline", lambda name=name: name)
        monkeypatch.setattr(_compare, "measure_softmax", lambda *_, ms=ms: [ms] * 3)
        found = analysis.compare(data, ["elu"], resume=tmp_path / "resume").timing
        assert (found.baseline, found.softmax_ms) == (name, (ms,) * 3)


def test_a_noisy_timing_is_not_spoken_of(monkeypatch, hasty):
    data = analysis.synthetic_attention("gaussian:n=16,d=2")
    used = iter([0.0, 1e6])
    monkeypatch.setattr(_compare, "other_work", lambda: next(used))
    result = analysis.compare(data, ["elu"])
    assert "On this machine" not in result.verdict
    assert any("the times are unreliable" in note for note in result.data.notes)
    monkeypatch.setattr(_compare, "other_work", lambda: 0.0)
    assert "On this machine" in analysis.compare(data, ["elu"]).verdict


def test_values_of_zero_are_not_taken_for_weights_of_zero():
    q, k, v = np.random.default_rng(0).standard_normal((3, 16, 4))
    data = analysis.AttentionData.from_arrays(q, k, 0 * v)
    words = analysis.compare(data, ["elu"], measure=False).verdict
    assert "The output of softmax is 0 in every head" in words
    assert "sum to 0" not in words
    assert "The weights are still compared" in words
    data = analysis.AttentionData.from_arrays(-np.abs(q), np.abs(k), v)
    words = analysis.compare(data, ["relu"], measure=False).verdict
    assert "In every row of every map the weights sum to 0" in words


def test_runs_of_other_settings_keep_their_pieces(tmp_path):
    x, path = np.zeros(3), tmp_path / "kept"
    assert run_key(1, x) == run_key(1, x.copy())
    assert len({run_key(1, x), run_key(2, x), run_key(1, x + 1), run_key("1", x)}) == 4
    path.write_text("something else entirely\n")
    for run in ("run 1", "run 2", "run 3"):
        Store(path, run).put("a", run)
    store = Store(path, "run 1")
    assert store.get("a") == "run 1"
    store.put("b", 1)
    with path.open("a") as file:
        file.write("0123456789abcdef [")  # killed in the middle of a line
    again = Store(path, "run 2")
    assert (again.get("a"), again.get("b")) == ("run 2", None)
    assert finish(path)  # run 2
    assert Store(path, "run 2").resumed == 0
    assert Store(path, "run 1").resumed == 2
    assert finish(path)
    assert Store(path, "run 3").get("a") == "run 3"
    assert not finish(path)
    assert not path.exists()


def test_a_metric_is_declared_once():
    """The declaration drives the summary, the JSON keys, the report and the documentation."""
    fields = [field.name for field in dataclasses.fields(HeadMetrics)]
    assert [*METRICS, "limit_kind"] == fields
    for metric in METRICS.values():
        assert metric.formula
        assert f"`{metric.name}`: {metric.formula}" in HeadMetrics.__doc__
        assert not metric.label or (metric.title and metric.meaning.endswith("."))
    example = dict.fromkeys(METRICS, 1.0) | {"limit_kind": "bound"}
    other = dict.fromkeys(METRICS, 3.0) | {"limit_kind": "estimate"}
    summary = HeadMetrics.summary([HeadMetrics(**example), HeadMetrics(**other)])
    expected = {"mean": 2.0, "max": 3.0, "min": 1.0, "sum": 4.0}
    for metric in METRICS.values():
        if metric.reduction != "derived":
            assert getattr(summary, metric.name) == expected[metric.reduction], metric.name
    assert summary.whole_error == math.sqrt((1 + 9 * 3) / 4)
    assert (summary.times_limit, summary.limit_kind) == (1.0, "estimate")


def test_needle_is_found_by_no_cheap_map():
    data = analysis.synthetic_attention("needle:n=128,d=16")
    result = analysis.compare(data, ["elu", "relu"], measure=False)
    assert result.maps[0].summary.output_error > 0.5
    assert "Keep softmax in every head" in result.verdict


def test_above_2048_tokens_each_weight_is_formed_once_in_float32(monkeypatch):
    """They are computed once more in float64 for the 512 rows of the expensive metrics."""
    formed, normalized = collections.Counter(), _blocks.normalized

    def counted(weights, *rest):
        formed[weights.dtype.name] += weights.size
        return normalized(weights, *rest)

    monkeypatch.setattr(_blocks, "normalized", counted)
    n = 2050
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, n, 16)).astype(np.float32)
    analysis.analyze_map(q, k, v, "elu")
    assert formed == {"float32": n * n, "float64": _sampled.SAMPLED_ROWS * n}


@pytest.mark.slow
def test_16384_tokens_need_little_memory():
    """Streamed metrics need at most 128 MiB beyond the data."""
    q, k = np.random.default_rng(0).standard_normal((2, 1, 16384, 64)).astype(np.float32)
    tracemalloc.start()
    analysis.compare_weights(q, k, "elu")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak <= 128 * 2**20
