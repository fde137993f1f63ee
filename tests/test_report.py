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
from cases import each

import kerneltrick as kt
from kerneltrick import analysis, maps, report
from kerneltrick._install import install_command

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
    "money in my purse , and nothing particular to interest me on shore , i thought i would sail"
)
WORDS = TEXT.split()


def words_of(n: int) -> list[str]:
    return [WORDS[i % len(WORDS)] for i in range(n)]


def topical(
    layers: int = 2, heads: int = 4, kv_heads: int = 4, n: int = 24, d: int = 8
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Queries, keys and values in float16: a word is the same vector wherever it stands, which each
    head turns and sharpens in its own way.
    """
    rng = np.random.default_rng(0)
    vectors = {word: rng.standard_normal(d) for word in dict.fromkeys(WORDS)}
    content = np.stack([vectors[word] for word in words_of(n)])
    turns, _ = np.linalg.qr(rng.standard_normal((layers, kv_heads, d, d)))
    k = content @ turns + 0.4 * rng.standard_normal((layers, kv_heads, n, d))
    sharpness = rng.uniform(0.35, 1.25, (layers, heads, 1, 1))
    q = sharpness * np.repeat(k, heads // kv_heads, axis=1)
    q += 0.3 * rng.standard_normal(q.shape)
    v = rng.standard_normal(k.shape)
    return q.astype(np.float16), k.astype(np.float16), v.astype(np.float16)


def encoded(values: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(values, dtype=kind).tobytes()).decode()


def map_of(text: str, d: int) -> maps.FeatureMap:
    """The map of a text; the weights of t2r as a picture keeps them, in float32."""
    chosen = maps.get(text)
    if isinstance(chosen, maps.T2R):
        return maps.T2R(weight=chosen.weights(d).astype(np.float32).astype(np.float64))
    return chosen


def comparison_of(
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 4,
    n: int = 24,
    d: int = 8,
    *,
    causal: bool = False,
    texts: list[str] | None = None,
) -> dict[str, Any]:
    """A comparison with real weights and metrics and invented times."""
    texts = [text.format(n=n) for text in texts or MAPS]
    data = analysis.AttentionData.from_arrays(
        *(x.astype(np.float64) for x in topical(layers, heads, kv_heads, n, d)),
        layers=[0, 2, 5, 7][:layers], causal=causal, tokens=words_of(n),
    )  # fmt: skip
    found = analysis.compare(data, texts, measure=False).to_dict()
    found["picture"] = analysis.picture(data, texts)
    found["softmax"]["ms_per_1000_tokens"] = 3.2
    for row in (found["uniform"], *found["maps"]):
        row["ms_per_1000_tokens"] = 0.4 + 0.011 * row["features"]
    lengths = [128, 256, 512, 1024, 2048, 4096, 8192]
    found["timing"] = {
        "map": "elu", "baseline": "softmax", "lengths": lengths,
        "linear_ms": [0.3 + 0.0011 * t for t in lengths],
        "softmax_ms": [0.1 + 0.0004 * t + 1.1e-6 * t * t for t in lengths],
        "linear_fit": [0.3, 0.0011], "softmax_fit": [0.1, 0.0004, 1.1e-6], "crossover": 849,
    }  # fmt: skip
    return found


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
    bare = copy.deepcopy(comparison)
    bare["data"]["tokens"] = bare["timing"] = bare["maps"][0]["heads"][0][0] = None
    bare["curves"] = []
    assert data_in(report.render_html(bare)) == bare


def test_the_report_of_the_sample_size_stays_below_3_mb(comparison):
    layers, heads, n, d = 3, 12, 128, 32
    q, k, v = topical(layers, heads, heads, n, d)
    data = analysis.AttentionData.from_arrays(q, k, v)
    texts = [text.format(n=n) for text in MAPS]
    cells = [row["heads"][0][0] for row in comparison["maps"]]
    grids = [{"heads": [[cell] * heads] * layers} for cell in cells]
    tops = [[comparison["softmax"]["heads"][0][0]] * heads] * layers
    big = comparison | {
        "maps": [row | grid for row, grid in zip(comparison["maps"], grids, strict=True)],
        "picture": analysis.picture(data, texts),
        "softmax": comparison["softmax"] | {"heads": tops},
    }
    big["data"] = comparison["data"] | {
        "layers": [0, 2, 5], "heads": list(range(heads)), "kv_heads": heads, "n": n, "d": d,
        "tokens": ["whale"] * n,
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


@each(
    "path",
    [
        "data", "data.kv_heads", "softmax.cache_bytes", "maps.1.heads", "curves.0.points.0.mse",
        "timing.softmax_fit", "picture", "picture.maps.0.scale",
    ],
)  # fmt: skip
def test_a_missing_field_is_named(comparison, path):
    with pytest.raises(ValueError, match=rf"\b{path.split('.')[-1]}\b"):
        report.render_html(without(comparison, path))


@each(
    "change, message",
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


def test_figures_are_written_as_asked(comparison, tmp_path):
    paths = report.figures(comparison, tmp_path / "new" / "folder")
    names = [f"{name}.{end}" for name in ("weights", "pareto", "error", "timing")
             for end in ("pdf", "png")]  # fmt: skip
    assert [path.name for path in paths] == names
    assert all(path.stat().st_size > 3000 for path in paths)


def test_figures_draw_the_weights_of_the_library_and_hide_the_future():
    texts = ["elu", "t2r:features=6"]
    found = comparison_of(1, 4, 2, 12, 4, causal=True, texts=texts)
    figure = report.weights_figure(found, head=3, feature_maps=texts)
    q, k, _ = (x.astype(np.float64) for x in topical(1, 4, 2, 12, 4))
    images = [axes.images[0].get_array() for axes in figure.axes if axes.images]
    assert len(images) == 3
    for image, text in zip(images[1:], texts, strict=True):
        assert np.ma.getmaskarray(np.ma.masked_invalid(image))[np.triu_indices(12, 1)].all()
        truth = kt.attention_weights(q[0, 3], k[0, 1], map_of(text, 4), causal=True, on_zero="nan")
        np.testing.assert_allclose(np.tril(image), np.tril(truth), rtol=1e-12)


@each(
    "options, message",
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
    marks = [line for line in axes.lines if line.get_marker() == "^" and len(line.get_xdata())]
    assert {y for mark in marks for y in mark.get_ydata()} == {2 * nothing}


def test_figures_without_matplotlib_say_what_to_install(comparison, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=re.escape(install_command("plot"))):
        report.pareto_figure(comparison)
