"""The report without a browser: the contents of the file, refusals, and figures."""

from __future__ import annotations

import base64
import copy
import json
import math
import re
import sys
from typing import Any

import numpy as np
import pytest

import kerneltrick as kt
from kerneltrick import maps, report

MAPS = [
    "elu", "relu", "relu2", "exp", "square", "cosformer:horizon={n}", "favor:features=256",
    "favor:features=256,kind=trig", "taylor:order=2", "poly:degree=2", "hedgehog",
]  # fmt: skip
OTHERS = [
    "identity", "favor:features=64,kind=hyperbolic", "taylor:order=1", "taylor:order=3",
    "poly:degree=3,constant=0", "poly:degree=1,constant=0.5", "hedgehog:activation=exp",
    "t2r:features=48",
]  # fmt: skip
TEXT = (
    "call me ish ##mael . some years ago - never mind how long precisely - having little or no "
    "money in my purse , and nothing particular to interest me on shore , i thought i would sail "
    "about a little and see the watery part of the world . it is a way i have of driving off the "
    "sp ##leen and regulating the circulation . whenever i find myself growing grim about the "
    "mouth ; whenever it is a damp , dri ##zz ##ly november in my soul ; whenever i find myself "
    "involuntarily pausing before coffin warehouses , and bringing up the rear of every funeral i "
    "meet ; and especially whenever my h ##yp ##os get such an upper hand of me"
)
WORDS = TEXT.split()


def topical(
    layers: int, heads: int, kv_heads: int, n: int, d: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values with structure: topics, neighbours, and peaked heads, as float16."""
    rng = np.random.default_rng(seed)
    group = heads // kv_heads
    # The same word is the same vector, as in a model; a wave marks the position.
    words = [WORDS[i % len(WORDS)] for i in range(n)]
    vectors = {word: rng.standard_normal(d) for word in dict.fromkeys(words)}
    content = np.stack([vectors[word] for word in words])
    angles = np.arange(n)[:, None] / (4.0 * 2 ** np.linspace(0, 5, d // 2))
    place = np.concatenate([np.cos(angles), np.sin(angles)], axis=-1) * math.sqrt(2)
    q = np.empty((layers, heads, n, d))
    k = np.empty((layers, kv_heads, n, d))
    for layer, head in np.ndindex(layers, kv_heads):
        mix = rng.beta(0.7, 0.7)
        turn = np.linalg.qr(rng.standard_normal((d, d)))[0]
        base = math.sqrt(mix) * content @ turn + math.sqrt(1 - mix) * place
        k[layer, head] = base + 0.4 * rng.standard_normal((n, d))
        k[layer, head, 0] *= 1.0 + 0.5 * rng.random()
        for member in range(head * group, (head + 1) * group):
            shift = int(rng.integers(-2, 3))
            sharp = 0.35 + 0.9 * rng.random() ** 2
            q[layer, member] = sharp * np.roll(base, shift, axis=0) + 0.3 * rng.standard_normal(
                (n, d)
            )
    v = rng.standard_normal((layers, kv_heads, n, d))
    return q.astype(np.float16), k.astype(np.float16), v.astype(np.float16)


def measured(soft: np.ndarray, weights: np.ndarray, v: np.ndarray, m: int) -> dict[str, Any]:
    """The metrics of one head, by their definitions; None where there is no number."""
    truth, output = soft @ v, weights @ v
    order = [np.argsort(-a, axis=-1)[:, :8] for a in (soft, weights)]
    shared = [len(set(a) & set(b)) / a.size for a, b in zip(*order, strict=True)]
    ranks = [np.argsort(np.argsort(a, axis=-1), axis=-1).ravel() for a in (soft, weights)]
    bound = float((np.linalg.svd(soft, compute_uv=False)[m:] ** 2).sum() / soft.size)
    mse = float(((weights - soft) ** 2).mean())
    with np.errstate(divide="ignore", invalid="ignore"):
        kl = np.where(soft > 0, soft * np.log(soft / weights), 0).sum(-1).mean()
        entropy = -np.where(weights > 0, weights * np.log(weights), 0).sum(-1).mean()
        lengths = np.linalg.norm(truth, axis=-1) * np.linalg.norm(output, axis=-1)
        cosine = ((truth * output).sum(-1) / lengths).mean()
        correlation = np.corrcoef(soft.ravel(), weights.ravel())[0, 1]
    found = {
        "mse": mse,
        "max_diff": np.abs(weights - soft).max(),
        "correlation": correlation,
        "kl": math.nan if (weights < 0).any() else kl,
        "total_variation": np.abs(weights - soft).sum(-1).mean() / 2,
        "top1_agreement": (order[0][:, 0] == order[1][:, 0]).mean(),
        "top8_agreement": np.mean(shared),
        "entropy": entropy,
        "rank_correlation": np.corrcoef(*ranks)[0, 1],
        "output_error": np.linalg.norm(output - truth) / np.linalg.norm(truth),
        "whole_error": np.linalg.norm(output - truth) / np.linalg.norm(truth),
        "output_energy": np.linalg.norm(truth) ** 2,
        "output_cosine": cosine,
        "smallest_normalizer": 0.5,
        "condition_number": np.abs(weights).sum(-1).max(),
        "negative_fraction": (weights < 0).mean(),
        "overflows": 0,
        "underflows": 0,
        "float32_error": 2e-7,
        "undefined_rows": (weights == 0).all(-1).sum(),
        "gradient_ratio": 0.8,
        "dead_gradients": 0.0,
        "limit_mse": bound if m < len(soft) else 0.0,
        "times_limit": mse / bound if m < len(soft) and bound > 0 else math.inf,
    }
    plain = {key: float(value) for key, value in found.items()}
    return {"limit_kind": "bound"} | {
        key: None if math.isnan(value) else "inf" if math.isinf(value) else value
        for key, value in plain.items()
    }


def mean(rows: list[dict[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {"limit_kind": "bound"}
    for key in rows[0].keys() - {"limit_kind"}:
        values = [row[key] for row in rows]
        out[key] = None if None in values else "inf" if "inf" in values else float(np.mean(values))
    return out


def encoded(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()


def map_of(text: str, d: int) -> maps.FeatureMap:
    """The map of a text; t2r with weights that a picture can hold."""
    chosen = maps.get(text)
    if not isinstance(chosen, maps.T2R):
        return chosen
    drawn = np.random.default_rng(3).standard_normal((d, chosen.features)) / math.sqrt(d)
    return maps.T2R(weight=drawn.astype(np.float32).astype(np.float64))


def entry_of(text: str, d: int) -> dict[str, Any]:
    """A map as the picture tells the page about it."""
    chosen = map_of(text, d)
    parameters = {
        name: getattr(chosen, name)
        for name in ("kind", "features", "degree", "constant", "order", "horizon", "activation")
        if hasattr(chosen, name)
    }
    projection = None
    if isinstance(chosen, maps.Favor):
        projection = encoded(chosen.projection(d), "<f4")
    elif isinstance(chosen, maps.T2R):
        projection = encoded(chosen.weight.T, "<f4")
    return {
        "map": text, "name": chosen.name, "parameters": parameters,
        "scale": chosen.default_scale(d), "projection": projection,
        "window": 0, "sinks": 0, "gain": 0.0, "relative": False,
    }  # fmt: skip


def comparison_of(
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 4,
    n: int = 24,
    d: int = 8,
    *,
    causal: bool = False,
    texts: list[str] | None = None,
    seed: int = 0,
) -> dict[str, Any]:
    """A comparison with real weights and metrics and invented times."""
    texts = [text.format(n=n) for text in texts or MAPS]
    q, k, v = topical(layers, heads, kv_heads, n, d, seed)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    scale = 1 / math.sqrt(d)
    _, soft = kt.softmax_attention(*wide, causal=causal, return_weights=True)
    values = np.repeat(wide[2], heads // kv_heads, axis=1)
    rows, drawn = [], []
    for number, text in enumerate(["uniform", *texts]):
        chosen = maps.get(lambda x: np.ones_like(x[..., :1])) if number == 0 else map_of(text, d)
        m = chosen.dim(d)
        weights = kt.attention_weights(wide[0], wide[1], chosen, causal=causal, on_zero="zero")
        grid = [
            [measured(soft[i, h], weights[i, h], values[i, h], m) for h in range(heads)]
            for i in range(layers)
        ]
        rows.append(
            {
                "map": text, "features": m, "sign": chosen.sign,
                "state_bytes": 8 * heads * m * (d + 1),
                "ms_per_1000_tokens": (0.4 + 0.011 * m) * (1 + 0.15 * math.sin(number)),
                "summary": mean([cell for line in grid for cell in line]), "heads": grid,
            }
        )  # fmt: skip
        drawn += [entry_of(text, d)] if number else []
    lengths = [128, 256, 512, 1024, 2048, 4096, 8192]
    noise = np.random.default_rng(1).normal(1, 0.05, (2, len(lengths)))
    linear = [(0.3 + 0.0011 * t) * float(e) for t, e in zip(lengths, noise[0], strict=True)]
    square = [
        (0.1 + 0.0004 * t + 1.1e-6 * t * t) * float(e)
        for t, e in zip(lengths, noise[1], strict=True)
    ]
    curves = []
    for family, members in {
        "favor positive": [f"favor:features={m}" for m in (16, 32, 64, 128, 256)],
        "favor hyperbolic": [f"favor:features={m},kind=hyperbolic" for m in (16, 32, 64, 128, 256)],
        "favor trig": [f"favor:features={m},kind=trig" for m in (16, 32, 64, 128, 256)],
        "taylor order": ["taylor:order=1", "taylor:order=2"],
        "poly degree": ["poly:degree=1", "poly:degree=2"],
    }.items():
        points = []
        for text in members:
            m = maps.get(text).dim(d)
            weights = kt.attention_weights(
                wide[0][0], wide[1][0], text, causal=causal, on_zero="zero"
            )
            found = mean([measured(soft[0, h], weights[h], values[0, h], m) for h in range(heads)])
            points.append(
                {"map": text, "features": m}
                | {key: found[key] for key in ("output_error", "mse", "limit_mse")}
            )
        curves.append({"family": family, "points": points})
    tops = [
        [
            {
                "entropy": float(-(a * np.log(np.where(a > 0, a, 1))).sum(-1).mean()),
                "effective_rank": float((s := np.linalg.svd(a, compute_uv=False)).sum() / s[0]),
                "top1_weight": float(a.max(-1).mean()),
            }
            for a in line
        ]
        for line in soft
    ]
    return {
        "format": "kerneltrick.compare/3",
        "version": kt.__version__,
        "data": {
            "source": "sample: all-MiniLM-L6-v2 on the opening of Moby-Dick",
            "layers": [0, 2, 5, 7][:layers], "heads": list(range(heads)), "kv_heads": kv_heads,
            "n": n, "d": d, "value_width": d, "causal": causal, "scale": scale,
            "dtype": "float16", "tokens": [WORDS[i % len(WORDS)] for i in range(n)], "seed": 0,
            "notes": [],
        },
        "softmax": {"ms_per_1000_tokens": 3.2, "cache_bytes": 98304, "heads": tops},
        "uniform": rows[0],
        "maps": rows[1:],
        "curves": curves,
        "windows": [
            {"map": text, "points": [
                {"window": w, "map": f"{text}@window={w}", "output_error": 0.5 / (1 + w),
                 "whole_error": 0.4 / (1 + w), "heads": []} for w in (0, 1, 2, 4, 8)]}
            for text in ("elu", "softmax")
        ],
        "timing": {
            "map": "elu", "baseline": "softmax", "lengths": lengths,
            "linear_ms": linear, "softmax_ms": square,
            "linear_fit": [0.3, 0.0011], "softmax_fit": [0.1, 0.0004, 1.1e-6], "crossover": 849,
        },
        "verdict": "taylor:order=2 comes closest: its output is off by 3 % and least of all in 31 "
        "of 36 heads, at 2.1 times the time of elu. favor:features=256 comes second. Heads 0.3 "
        "and 5.2 are too peaked for any map with m ≤ 256: keep softmax there.",
        "picture": {
            "tokens": n, "q": encoded(q, "<f2"), "k": encoded(k, "<f2"), "maps": drawn,
        },
    }  # fmt: skip


@pytest.fixture(scope="module")
def comparison() -> dict[str, Any]:
    return comparison_of()


def data_in(html: str) -> Any:
    """Extract the JSON as a browser does, up to the first </script."""
    opening = '<script type="application/json" id="data">'
    start = html.index(opening) + len(opening)
    return json.loads(html[start : html.index("</script", start)])


def test_the_data_in_the_page_is_the_comparison(comparison):
    assert data_in(report.render_html(comparison)) == comparison


def test_the_report_of_the_sample_size_stays_below_3_mb():
    small = comparison_of()
    layers, heads, n, d = 3, 12, 128, 32
    q, k, _ = topical(layers, heads, heads, n, d, 0)
    rows = [
        row | {"heads": [[row["heads"][0][0]] * heads] * layers, "features": 256}
        for row in small["maps"]
    ]
    big = small | {"maps": rows}
    big["data"] = small["data"] | {
        "layers": [0, 2, 5], "heads": list(range(heads)), "kv_heads": heads, "n": n, "d": d,
        "tokens": ["whale"] * n,
    }  # fmt: skip
    big["softmax"] = small["softmax"] | {"heads": [[small["softmax"]["heads"][0][0]] * heads] * 3}
    drawn = [entry_of(row["map"].replace("horizon=24", "horizon=128"), d) for row in rows]
    big["picture"] = {
        "tokens": n, "q": encoded(q, "<f2"), "k": encoded(k, "<f2"), "maps": drawn,
    }  # fmt: skip
    assert 1e6 < len(report.render_html(big).encode()) < 3e6


HOSTILE = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<!--<script>",
    "\"'`&amp;&lt;",
    "@SCRIPT@ @DATA@",
    "line\u2028separator\u2029",
    "\ud800 half a pair",
    "\u202eright to left",
]


def hostile(comparison: dict[str, Any]) -> dict[str, Any]:
    """The comparison with a dangerous string in every free text field."""
    out = copy.deepcopy(comparison)
    n = len(out["data"]["tokens"])
    out["data"] |= {
        "source": HOSTILE[0], "tokens": (HOSTILE * n)[:n], "notes": list(HOSTILE),
        "dtype": HOSTILE[1],
    }  # fmt: skip
    out["verdict"] = " ".join(HOSTILE)
    out["version"] = HOSTILE[0]
    out["curves"][0]["family"] = HOSTILE[1]
    out["timing"]["map"] = HOSTILE[0]
    out["maps"][0]["map"] = out["picture"]["maps"][0]["map"] = HOSTILE[0]
    out["maps"][1]["map"] = out["picture"]["maps"][1]["map"] = HOSTILE[1]
    return out


def test_hostile_texts_stay_inside_the_data(comparison):
    bad = hostile(comparison)
    html = report.render_html(bad)
    assert data_in(html) == bad
    plain = report.render_html(comparison)
    assert len(re.findall(r"<script", html)) == len(re.findall(r"<script", plain))
    assert "alert(1)<" not in html
    assert "<img" not in html
    html.encode("utf-8")  # half of a surrogate pair cannot be written unless escaped


def test_nothing_is_loaded_from_anywhere(comparison):
    html = report.render_html(comparison)
    assert not re.findall(r"https?:|url\(|@import|\bfetch\(|XMLHttpRequest|WebSocket", html)
    loads = re.findall(r"""(?:src|href)\s*=\s*["']?([^"'\s>]+)""", html)
    assert all(link.startswith(("data:", "#")) for link in loads)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)
    assert policy is not None
    assert policy[1].startswith("default-src 'none'")
    assert "unsafe" not in policy[1]


def test_nan_and_infinity_travel_as_null_and_inf(comparison):
    odd = copy.deepcopy(comparison)
    odd["maps"][0]["summary"] |= {"mse": math.nan, "kl": math.inf}
    summary = data_in(report.render_html(odd))["maps"][0]["summary"]
    assert (summary["mse"], summary["kl"]) == (None, "inf")


def without(comparison: dict[str, Any], path: str) -> dict[str, Any]:
    out = copy.deepcopy(comparison)
    *parents, last = path.split(".")
    place: Any = out
    for name in parents:
        place = place[int(name) if name.isdigit() else name]
    del place[last]
    return out


@pytest.mark.parametrize(
    "path",
    [
        "data", "data.tokens", "data.kv_heads", "softmax.cache_bytes", "maps.0.summary",
        "maps.1.heads", "curves.0.points", "curves.0.points.0.mse", "timing.softmax_fit",
        "picture", "picture.k", "picture.maps.0.scale", "verdict",
    ],
)  # fmt: skip
def test_a_missing_field_is_named(comparison, path):
    with pytest.raises(ValueError, match=rf"\b{path.split('.')[-1]}\b"):
        report.render_html(without(comparison, path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format="kerneltrick.compare/1"), "compare/1"),
        (lambda c: c.update(maps=[]), "no maps"),
        (lambda c: c["data"].update(kv_heads=3), "4 query heads cannot share 3"),
        (lambda c: c["data"].update(layers=[]), "no layers"),
        (lambda c: c["maps"][0]["heads"].pop(), "2 layers × 4 heads"),
        (lambda c: c["picture"].update(q="AAAA"), "picture.q has 3 bytes"),
        (lambda c: c["picture"].update(k="</script>"), "picture.k is not base64"),
        (lambda c: c["picture"].update(tokens=25), "24 tokens"),
        (lambda c: c["data"].update(tokens=["a"]), "1 texts"),
        (lambda c: c["picture"]["maps"][6].update(projection="AAAA"), "float32 matrix"),
        (lambda c: c["timing"]["linear_ms"].pop(), "linear_ms has 6 numbers, not 7"),
        (lambda c: c.update(softmax=3), "must be a mapping, not int"),
    ],
)
def test_a_wrong_field_is_refused_with_what_was_expected(comparison, change, message):
    bad = copy.deepcopy(comparison)
    change(bad)
    with pytest.raises(ValueError, match=re.escape(message)):
        report.render_html(bad)


def test_a_comparison_without_curves_timing_tokens_or_a_head_is_drawn(comparison):
    bare = copy.deepcopy(comparison)
    bare["data"]["tokens"] = bare["timing"] = bare["maps"][0]["heads"][0][0] = None
    bare["curves"] = []
    assert data_in(report.render_html(bare)) == bare


def test_figures_are_written_as_asked(comparison, tmp_path):
    paths = report.figures(comparison, tmp_path / "new" / "folder")
    names = [f"{name}.{end}" for name in ("weights", "pareto", "error", "timing")
             for end in ("pdf", "png")]  # fmt: skip
    assert [path.name for path in paths] == names
    assert all(path.stat().st_size > 3000 for path in paths)


def test_figures_draw_the_weights_of_the_library(comparison):
    texts = ["elu", "taylor:order=2"]
    figure = report.weights_figure(comparison, layer=2, head=3, feature_maps=texts)
    q, k, _ = (x.astype(np.float64) for x in topical(2, 4, 4, 24, 8, 0))
    images = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert len(images) == 3
    for image, text in zip(images[1:], texts, strict=True):
        np.testing.assert_allclose(image, kt.attention_weights(q[1, 3], k[1, 3], text), rtol=1e-12)


def test_figures_of_causal_grouped_heads_hide_the_future():
    grouped = comparison_of(1, 4, 2, 12, 4, causal=True, texts=["elu", "t2r:features=6"])
    figure = report.weights_figure(grouped, head=3, feature_maps=["t2r:features=6"])
    image = figure.axes[1].images[0].get_array()
    assert np.ma.getmaskarray(np.ma.masked_invalid(image))[np.triu_indices(12, 1)].all()
    q, k, _ = (x.astype(np.float64) for x in topical(1, 4, 2, 12, 4, 0))
    truth = kt.attention_weights(
        q[0, 3], k[0, 1], map_of("t2r:features=6", 4), causal=True, on_zero="nan"
    )
    np.testing.assert_allclose(np.tril(image), np.tril(truth), rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 9}, "no layer 9"),
        ({"head": -1}, "no head -1"),
        ({"feature_maps": ["softplus"]}, "no map 'softplus'"),
    ],
)
def test_figures_refuse_what_the_comparison_does_not_hold(comparison, options, message):
    with pytest.raises(ValueError, match=message):
        report.weights_figure(comparison, **options)


def test_pareto_with_the_limit_and_without_a_finite_number(comparison):
    odd = copy.deepcopy(comparison)
    odd["maps"][0]["summary"]["mse"] = None
    shown = {text.get_text() for text in report.pareto_figure(odd, "mse").axes[0].texts}
    assert shown == {"softmax"} | {row["map"] for row in odd["maps"][1:]}
    with pytest.raises(ValueError, match="'output_error' or 'mse'"):
        report.pareto_figure(odd, "kl")


def test_curves_that_err_more_than_looking_at_nothing_do_not_squash_the_others(comparison):
    loud = copy.deepcopy(comparison)
    loud["curves"][2]["points"][0]["output_error"] = 1e4
    nothing = loud["uniform"]["summary"]["whole_error"]
    axes = report.error_figure(loud, "output_error").axes[0]
    assert axes.get_ylim()[1] < 4 * nothing
    (mark,) = [line for line in axes.lines if line.get_marker() == "^" and len(line.get_xdata())]
    assert set(mark.get_ydata()) == {2 * nothing}


def test_figures_without_matplotlib_say_what_to_install(comparison, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"kerneltrick\[plot\]"):
        report.pareto_figure(comparison)
