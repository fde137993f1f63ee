"""Metrics agree with direct float64 computations from the full matrices."""

import json
import math
import tracemalloc

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from cases import each

import kerneltrick as kt
from kerneltrick import analysis, maps

MAPS = [
    "identity",
    "elu",
    "relu",
    "exp",
    "cosformer:horizon=40",
    "favor:features=32",
    "favor:features=32,kind=trig",
    "poly:degree=2",
    "taylor:order=2",
    "taylor:order=3",
    "hedgehog",
]


def data(n=37, d=6, heads=3, kv_heads=3, width=5, seed=0, scale=0.7):
    rng = np.random.default_rng(seed)
    q = scale * rng.standard_normal((2, heads, n, d))
    k = scale * rng.standard_normal((2, kv_heads, n, d))
    q[..., 0], k[..., 0] = np.abs(q[..., 0]), np.abs(k[..., 0])  # so that ReLU maps are defined
    return q, k, rng.standard_normal((2, kv_heads, n, width))


def softmax_weights(q, k, scale, causal):
    scores = scale * np.einsum("...id,...jd->...ij", q, np.repeat(k, q.shape[1] // k.shape[1], 1))
    if causal:
        scores = np.where(np.tri(q.shape[-2], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True)


def direct(a, s, causal):
    """Compute the metrics by their definitions from full matrices."""
    seen = np.broadcast_to(np.tri(a.shape[-2], dtype=bool) if causal else True, a.shape)
    x, y = a[seen], s[seen]
    return {
        "mse": np.mean((x - y) ** 2),
        "max_diff": np.max(np.abs(x - y)),
        "correlation": np.corrcoef(x, y)[0, 1],
        "total_variation": np.mean(np.abs(a - s).sum(-1) / 2),
        **entropies(a, s, seen),
        "top8_agreement": top8(a, s, seen),
        "top1_agreement": np.mean(a.argmax(-1) == s.argmax(-1)),
    }


def entropies(a, s, seen):
    def entropy(p, q):
        with np.errstate(divide="ignore", invalid="ignore"):
            terms = np.where(seen & (p > 0), p * np.log(q), 0.0)
        return -terms.sum(-1).mean()

    if (a < 0).any():
        kl = own = math.nan
    else:
        kl, own = entropy(s, a) - entropy(s, s), entropy(a, a)
    return {"kl": kl, "entropy": own, "softmax_entropy": entropy(s, s)}


def top8(a, s, seen):
    shares = []
    for row_a, row_s, row in zip(*(x.reshape(-1, a.shape[-1]) for x in (a, s, seen)), strict=True):
        if row.sum() > 8:
            best = [set(np.argsort(x[row])[-8:]) for x in (row_a, row_s)]
            shares.append(len(best[0] & best[1]) / 8)
    return np.mean(shares)


def close(comparison, expected):
    for name, value in expected.items():
        assert getattr(comparison, name) == pytest.approx(
            value, rel=1e-9, abs=1e-13, nan_ok=True
        ), name


@each("feature_map", MAPS)
@each("causal", [False, True])
def test_metrics_equal_their_definitions(feature_map, causal):
    q, k, v = data(seed=1)
    a = kt.attention_weights(q, k, feature_map, causal=causal)
    raw = kt.attention_weights(q, k, feature_map, causal=causal, normalize=False)
    output = kt.linear_attention(q, k, v, feature_map, causal=causal, engine="recurrent")
    s = softmax_weights(q, k, 1 / math.sqrt(6), causal)
    softmax = s @ v
    quality = analysis.analyze_map(q, k, v, feature_map, causal=causal)
    close(quality.weights, direct(a, s, causal))
    assert (quality.weights.rows, quality.undefined_rows) == (2 * 3 * 37, 0)
    alone = analysis.compare_weights(q, k, feature_map, causal=causal)
    assert quality.weights.to_dict() == alone.to_dict()

    error = np.linalg.norm(output - softmax) / np.linalg.norm(softmax)
    norms = np.linalg.norm(output, axis=-1) * np.linalg.norm(softmax, axis=-1)
    seen = np.broadcast_to(np.tri(37, dtype=bool) if causal else True, a.shape)
    m = maps.get(feature_map).dim(6)
    assert quality.output_relative_error == pytest.approx(error, rel=1e-7)
    assert quality.output_cosine == pytest.approx(np.mean((output * softmax).sum(-1) / norms))
    assert quality.smallest_normalizer == pytest.approx(np.abs(raw.sum(-1)).min(), rel=1e-7)
    condition = np.max(np.abs(raw).sum(-1) / np.abs(raw.sum(-1)))
    assert quality.condition_number == pytest.approx(condition, rel=1e-7)
    assert quality.negative_fraction == pytest.approx(np.mean(a[seen] < 0))
    assert quality.state_bytes == 2 * 3 * m * (5 + 1) * 8


@each("causal", [False, True])
def test_the_size_of_blocks_changes_nothing(causal):
    q, k, v = data()
    for feature_map in ("elu", "favor:features=16"):
        whole = analysis.analyze_map(q, k, v, feature_map, causal=causal).to_dict()
        weights = whole.pop("weights")
        for rows in (1, 5, 36, 1000):
            parts = analysis.analyze_map(q, k, v, feature_map, causal=causal, rows=rows).to_dict()
            assert parts.pop("weights") == pytest.approx(weights, rel=1e-10), rows
            assert parts == pytest.approx(whole, rel=1e-10), rows


def test_the_whole_matrix_of_weights_is_never_formed():
    n = 4000
    q, k, v = (x[0, 0] for x in data(n=n))
    tracemalloc.start()
    analysis.analyze_map(q, k, v, "favor:features=16", causal=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < n * n * 8 / 4


def test_a_kernel_that_is_softmax_is_perfect():
    q, k, v = data(d=4, scale=0.1)
    quality = analysis.analyze_map(q, k, v, "taylor:order=9", causal=True)
    assert quality.weights.mse < 1e-25
    assert quality.weights.correlation == pytest.approx(1)
    assert quality.output_relative_error < 1e-12
    assert quality.weights.top1_agreement == 1


def test_scales_and_lengths_are_those_given():
    q, k, _ = data()
    result = analysis.compare_weights(q[..., :9, :], k, "exp", scale=0.3, softmax_scale=2.0)
    a = kt.attention_weights(q[..., :9, :], k, "exp", scale=0.3)
    close(result, direct(a, softmax_weights(q, k, 2.0, False)[..., :9, :], False))


def test_query_heads_share_key_heads():
    q, k, v = data(heads=6, kv_heads=2)
    a = kt.attention_weights(q, k, "relu2", causal=True)
    result = analysis.compare_weights(q, k, "relu2", causal=True)
    close(result, direct(a, softmax_weights(q, k, 1 / math.sqrt(6), True), True))
    repeated = (np.repeat(x, 3, axis=1) for x in (k, v))
    apart = analysis.analyze_map(q, *repeated, "relu2", causal=True)
    shared = analysis.analyze_map(q, k, v, "relu2", causal=True)
    assert shared.output_relative_error == pytest.approx(apart.output_relative_error)
    assert apart.state_bytes == 3 * shared.state_bytes


@each("causal", [False, True])
def test_undefined_rows_are_counted_and_left_out(causal):
    q, k, v = (x[0, 0] for x in data())
    k = np.abs(k)
    q[[0, 7, 20]] = -np.abs(q[[0, 7, 20]])
    quality = analysis.analyze_map(q, k, v, "relu", causal=causal, rows=8)
    a = kt.attention_weights(q, k, "relu", causal=causal, on_zero="nan")
    s = softmax_weights(q[None, None], k[None, None], 1 / math.sqrt(6), causal)[0, 0]
    undefined = np.isnan(a).any(-1)
    assert quality.undefined_rows == undefined.sum() >= 3
    assert quality.smallest_normalizer == 0
    kept = ~undefined
    seen = (np.tri(37, dtype=bool) if causal else np.ones((37, 37), bool))[kept]
    x, y = a[kept], s[kept]
    assert quality.weights.mse == pytest.approx(np.mean((x - y)[seen] ** 2))
    assert quality.weights.correlation == pytest.approx(np.corrcoef(x[seen], y[seen])[0, 1])
    assert quality.weights.total_variation == pytest.approx(np.mean(np.abs(x - y).sum(-1) / 2))
    assert quality.weights.top1_agreement == pytest.approx(np.mean(x.argmax(-1) == y.argmax(-1)))
    error = np.linalg.norm(x @ v - y @ v) / np.linalg.norm(y @ v)
    assert quality.output_relative_error == pytest.approx(error)


def test_nothing_is_made_up_when_every_row_is_undefined():
    q, k = -np.ones((4, 3)), np.ones((4, 3))
    quality = analysis.analyze_map(q, k, k, "relu")
    assert quality.undefined_rows == quality.weights.rows == 4
    for value in (quality.weights.mse, quality.weights.max_diff, quality.condition_number):
        assert math.isnan(value)
    assert math.isnan(quality.output_relative_error)
    assert quality.to_dict()["weights"]["correlation"] is None


def test_constant_weights_have_no_correlation():
    q, k, _ = data()
    uniform = analysis.compare_weights(q, k, lambda x: np.ones_like(x[..., :1]))
    assert math.isnan(uniform.correlation)
    assert uniform.mse > 0
    # Causal: rows differ, so uniform attention correlates with softmax over the lower triangle.
    causal = analysis.compare_weights(q, k, lambda x: np.ones_like(x[..., :1]), causal=True)
    assert 0 < causal.correlation < 1


def test_large_inputs_overflow_nowhere():
    q, k, v = data(scale=100.0)
    for feature_map in ("exp", "favor:features=32", "poly:degree=2"):
        quality = analysis.analyze_map(q, k, v, feature_map, causal=True)
        assert math.isfinite(quality.weights.mse)
        assert math.isfinite(quality.output_relative_error)


@each(
    "convert",
    [torch.from_numpy, lambda x: torch.from_numpy(x).bfloat16(), lambda x: jnp.asarray(x)],
)
def test_any_library_is_measured_in_float64(convert):
    arrays = [convert(x.astype(np.float32)) for x in data()]
    exact = [np.asarray(x.float() if isinstance(x, torch.Tensor) else x) for x in arrays]
    ours = analysis.analyze_map(*arrays, "elu", causal=True)
    assert ours == analysis.analyze_map(*(x.astype(np.float64) for x in exact), "elu", causal=True)


def test_functions_and_weights_of_the_callers_library_are_understood():
    q, k, v = (torch.from_numpy(x) for x in data())
    by_name = analysis.analyze_map(q, k, v, "relu2")
    by_function = analysis.analyze_map(q, k, v, lambda x: torch.relu(x) ** 2)
    assert by_function.to_dict() == by_name.to_dict()
    weight = torch.randn(3, 6, 4, dtype=torch.float64, requires_grad=True)
    learned = analysis.compare_weights(q, k, maps.Hedgehog(weight))
    a = kt.attention_weights(q, k, maps.Hedgehog(weight)).detach().numpy()
    s = softmax_weights(q.numpy(), k.numpy(), 1 / math.sqrt(6), False)
    close(learned, direct(a, s, False))


def test_results_are_json():
    q, k, v = data(n=12)
    quality = analysis.analyze_map(q, k, v, "identity")
    values = json.loads(quality.to_json(), parse_constant=pytest.fail)
    assert values == quality.to_dict()
    assert values["weights"]["kl"] is None  # identity has negative weights
    q[..., 0, :], k = -np.abs(q[..., 0, :]), np.abs(k)
    assert analysis.analyze_map(q, k, v, "relu").to_dict()["weights"]["undefined_rows"] == 6


def test_bad_data_is_reported_by_name():
    q, k, v = data()
    v[1, 2, 30, 4] = np.nan
    with pytest.raises(ValueError, match=r"v holds 1 value .* index \(1, 2, 30, 4\)"):
        analysis.analyze_map(q, k, v, "elu")
    with pytest.raises(ValueError, match="rows must be a whole number"):
        analysis.compare_weights(q, k, "elu", rows=0)
    with pytest.raises(ValueError, match="at least one query"):
        analysis.compare_weights(q[..., :0, :], k[..., :0, :], "elu")
    with pytest.raises(ValueError, match="needs scale > 0"):
        analysis.compare_weights(q, k, "elu", softmax_scale=-1.0)
    with pytest.raises(ValueError, match="horizon"):
        analysis.compare_weights(q, k, "cosformer:horizon=4")
