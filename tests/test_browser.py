"""The report in a real browser: its numbers match the data, and it loads nothing.

Needs Playwright and a `chromium` on the PATH (Debian's package). With KERNELTRICK_REQUIRE_BROWSER=1
their absence is a failure, elsewhere a skip.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_report import HOSTILE, MAPS, OTHERS, comparison_of, encoded, hostile, map_of, topical

import kerneltrick as kt
from kerneltrick import report

SUPERSCRIPTS = str.maketrans("⁻⁰¹²³⁴⁵⁶⁷⁸⁹", "-0123456789")


DIALS = [
    "elu@window=4,sinks=2", "hedgehog@window=3,relative", "softmax@window=3,sinks=1", "softmax",
    "favor:features=8,seed=1@window=2,gain=-1", "taylor:order=2@sinks=1", "exp@window=5",
    "hedgehog:separate=true", "hedgehog:separate=true,activation=exp@window=3",
]  # fmt: skip


class Opened:
    """Open a report in a tab, and collect its errors and requests."""

    def __init__(self, browser: Any, path: Path, comparison: dict[str, Any], **options: Any):
        render = options.pop("render", report.render_html)
        path.write_text(render(comparison), encoding="utf-8")
        fragment = options.pop("fragment", "")
        self.address = path.as_uri()
        self.context = browser.new_context(**{"viewport": {"width": 1440, "height": 900}} | options)
        self.page = self.context.new_page()
        self.troubles: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", lambda message: self.troubles.append(message.text))
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("dialog", lambda dialog: self.troubles.append(dialog.message))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(self.address + fragment)

    def close(self) -> None:
        self.context.close()
        assert self.troubles == []
        assert {url.partition("#")[0] for url in self.requests} == {self.address}

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def readout(self, key: str) -> str:
        return self.text(f"#readout [data-key={key}] dd")

    def weights(self, layer: int, head: int, number: int | None) -> np.ndarray:
        call = "([l, h, m]) => Array.from(window.kerneltrick.weights(l, h, m), String)"
        values = [float(x) for x in self.page.evaluate(call, [layer, head, number])]
        n = round(len(values) ** 0.5)
        return np.array(values).reshape(n, n)


@pytest.fixture
def open_report(browser: Any, tmp_path: Path) -> Iterator[Any]:
    tabs: list[Opened] = []

    def opening(comparison: dict[str, Any], **options: Any) -> Opened:
        tabs.append(Opened(browser, tmp_path / f"{len(tabs)}.html", comparison, **options))
        return tabs[-1]

    yield opening
    for tab in tabs:
        tab.close()


pytestmark = pytest.mark.xdist_group("browser")  # one browser


@pytest.fixture(scope="module")
def comparison() -> dict[str, Any]:
    return comparison_of()


def value_of(text: str) -> float:
    """A number as the page writes it: 0.0123, 1.23·10⁻⁵, +0.5, −0.5, 34 %, 12.3×, ∞, –."""
    text = text.strip().replace("−", "-").replace("\u202f", "").replace("+", "")
    if text in ("–", "∞"):
        return {"–": np.nan, "∞": np.inf}[text]
    share = text.endswith("%")
    text = text.removesuffix("%").removesuffix("×").strip()
    mantissa, _, power = text.partition("·10")
    found = float(mantissa) * 10.0 ** int(power.translate(SUPERSCRIPTS) or 0)
    return found / 100 if share else found


def close(text: str, value: float, digits: float = 6e-3) -> bool:
    shown = value_of(text)
    if not np.isfinite(value):
        return np.array_equal(shown, value, equal_nan=True)
    return abs(shown - value) <= digits * abs(value) + 1e-300


def number(value: Any) -> float:
    return float("nan") if value is None else float(value)


@pytest.mark.parametrize(
    ("causal", "kv_heads"), [(False, 4), (True, 2)], ids=["full", "causal-grouped"]
)
def test_every_map_draws_the_weights_of_the_library(open_report, causal, kv_heads):
    n, d = 24, 8
    texts = [text.format(n=n) for text in [*MAPS, *OTHERS, *DIALS]]
    values = comparison_of(2, 4, kv_heads, n, d, causal=causal, texts=texts)
    tab = open_report(values)
    q, k, v = (x.astype(np.float64) for x in topical(2, 4, kv_heads, n, d))
    _, truth = kt.softmax_attention(q, k, v, causal=causal, return_weights=True)
    for layer, head in [(0, 0), (1, 3)]:
        np.testing.assert_allclose(tab.weights(layer, head, None), truth[layer, head], atol=1e-14)
    for at, text in enumerate(texts):
        setting = text if text in DIALS else map_of(text, d)
        truth = kt.attention_weights(q, k, setting, causal=causal, on_zero="nan")
        for layer, head in [(0, 1), (1, 2)]:
            drawn, expected = tab.weights(layer, head, at), truth[layer, head]
            if causal:  # nothing is drawn after the query, even in a row without weights
                drawn, expected = np.tril(drawn), np.tril(expected)
            # A sum that cancels magnifies rounding (of a projection kept in float32, if any).
            rounding = 1e-5 if text.startswith("favor") else 1e-12
            atol = rounding * np.nanmax(np.abs(expected)) * np.nanmax(np.abs(expected).sum(-1))
            np.testing.assert_allclose(drawn, expected, rtol=0, atol=atol, err_msg=text)
    assert tab.page.locator("#windows .line").count() == len(values["windows"])
    assert tab.page.locator("#windows-legend span").last.text_content() == "window alone"


def test_no_weight_overflows_where_an_exponential_would(open_report):
    """Keys of length 100, for which e^{q·k} overflows float64."""
    texts = ["exp", "favor:features=64", "favor:features=64,kind=hyperbolic",
             "hedgehog:activation=exp", "hedgehog", "taylor:order=2"]  # fmt: skip
    loud = comparison_of(1, 1, 1, 12, 8, texts=texts) | {"curves": [], "timing": None}
    q, k, _ = topical(1, 1, 1, 12, 8)
    loud["picture"] |= {"q": encoded(q * 60, "<f2"), "k": encoded(k * 60, "<f2")}
    tab = open_report(loud)
    for at in (None, *range(len(texts))):
        np.testing.assert_allclose(tab.weights(0, 0, at).sum(-1), 1, rtol=1e-12)


def test_choosing_hovering_and_keys_read_out_the_right_numbers(open_report, comparison):
    tab = open_report(comparison)
    page = tab.page
    at = [row["map"] for row in comparison["maps"]].index("taylor:order=2")
    page.select_option("#map", str(at))
    page.select_option("#layer", label="2")
    page.select_option("#head", label="3")
    q, k, v = (x.astype(np.float64) for x in topical())
    _, soft = kt.softmax_attention(q[1, 3], k[1, 3], v[1, 3], return_weights=True)
    mapped = kt.attention_weights(q[1, 3], k[1, 3], "taylor:order=2")

    def check(i: int, j: int) -> None:
        tokens = comparison["data"]["tokens"]
        assert tab.readout("query").split() == [str(i), tokens[i]]
        assert tab.readout("key").split() == [str(j), tokens[j]]
        assert close(tab.readout("softmax"), soft[i, j])
        assert close(tab.readout("map"), mapped[i, j])
        assert close(tab.readout("difference"), mapped[i, j] - soft[i, j])

    for panel, i, j in [("softmax", 3, 17), ("map", 20, 0), ("difference", 0, 23)]:
        canvas = page.locator(f"#panel-{panel} .cross")
        canvas.scroll_into_view_if_needed()
        box = canvas.bounding_box()
        cell = (box["width"] - 31) / 24
        page.mouse.move(box["x"] + 30 + (j + 0.5) * cell, box["y"] + 1 + (i + 0.5) * cell)
        check(i, j)
    page.locator("#panel-softmax .cross").focus()
    for key in ("ArrowDown", "ArrowDown", "ArrowLeft", "Shift+ArrowLeft"):
        page.keyboard.press(key)
    check(2, 12)
    for _ in range(5):
        page.keyboard.press("ArrowUp")
    check(0, 12)

    head = comparison["maps"][at]["heads"][1][3]
    for key in ("output_error", "top1_agreement", "mse", "times_limit", "condition_number"):
        assert close(tab.text(f"#stats [data-key={key}] dd"), number(head[key]), 0.02), key
    ribbon = page.locator("#ribbon-softmax span")
    assert ribbon.all_inner_texts() == comparison["data"]["tokens"]
    assert "query" in ribbon.nth(0).get_attribute("class")


def test_causal_panels_say_that_the_future_is_not_seen(open_report):
    tab = open_report(
        comparison_of(1, 2, 1, 16, 4, causal=True, texts=["elu"]), fragment="#i=2&j=9"
    )
    assert tab.readout("softmax") == "–"
    assert tab.readout("difference") == "after the query"
    assert tab.page.locator("#ribbon-map .unseen").count() == 13


def test_the_address_links_to_a_view(open_report, comparison):
    tab = open_report(
        comparison, fragment="#map=poly%3Adegree%3D2&layer=2&head=1&i=5&j=6&scale=log&error=mse"
    )
    assert tab.text("#title-map") == "poly 2"
    assert tab.text("#stats-title") == "Layer 2, head 1 with poly 2"
    assert tab.readout("query").startswith("5")
    assert tab.page.locator("#colour-scale input[value=log]").is_checked()
    assert tab.page.locator("#pareto-y input[value=mse]").is_checked()
    tab.page.select_option("#head", label="2")
    tab.page.wait_for_url(re.compile("head=2"))
    assert "map=poly%3Adegree%3D2" in tab.page.url
    tab.page.evaluate("location.hash = 'layer=99&head=-1&map=none&i=1e9&scale=constructor'")
    tab.page.wait_for_timeout(300)
    assert tab.text("#stats-title") == "Layer 2, head 2 with poly 2"
    tab.page.evaluate("location.hash = 'scale=root'")
    tab.page.wait_for_timeout(300)
    assert tab.page.locator("#colour-scale input[value=root]").is_checked()


def rows_of(tab: Opened, table: str) -> list[str]:
    return tab.page.locator(f"#{table}-table tbody th").all_inner_texts()


def test_tables_hold_the_data_and_sort_by_mouse_and_by_key(open_report, comparison):
    odd = copy.deepcopy(comparison)
    odd["maps"][2]["summary"] |= {"kl": None, "output_error": 0.5, "mse": "inf"}
    tab = open_report(odd)
    page = tab.page
    labels = page.evaluate("window.kerneltrick.labels")
    found = {"uniform": odd["uniform"], **dict(zip(labels, odd["maps"], strict=True))}

    for key in ("mse", "kl", "top1_agreement", "condition_number", "times_limit"):
        header = page.locator(f"#maps-table thead [data-key={key}]")
        header.click()
        assert header.locator("..").get_attribute("aria-sort") == "ascending"
        values = [number(found[name]["summary"][key]) for name in rows_of(tab, "maps")]
        finite = [value for value in values if not np.isnan(value)]
        assert finite == sorted(finite), key
        assert np.isnan(values[len(finite) :]).all(), "– comes last"
        shown = page.locator(f"#maps-table tbody [data-key={key}]").all_inner_texts()
        for text, value in zip(shown, values, strict=True):
            assert close(text, value, 0.02) or abs(value_of(text) - value) <= 5.1e-3, (key, text)
        page.keyboard.press("Enter")  # the header keeps the focus
        assert header.locator("..").get_attribute("aria-sort") == "descending"
        values = [number(found[name]["summary"][key]) for name in rows_of(tab, "maps")]
        assert [value for value in values if not np.isnan(value)] == finite[::-1]
    texts = page.locator("#maps-table tbody tr").all_inner_texts()
    assert any("–" in text for text in texts)
    assert any("∞" in text for text in texts)

    before = page.locator("#map").input_value()
    uniform = page.locator("#maps-table tbody tr", has_text="uniform")
    assert uniform.locator("button").count() == 0  # it cannot be chosen
    uniform.click()
    assert page.locator("#map").input_value() == before
    page.locator("#maps-table tbody th button", has_text=re.compile("^elu$")).click()
    assert page.locator("#map option:checked").inner_text() == "elu"
    assert tab.text("#heads-title") == "All heads with elu"
    page.locator("#heads-table thead [data-key=output_error]").click()
    elu = next(row for row in odd["maps"] if row["map"] == "elu")
    errors = {
        f"{layer}.{head}": elu["heads"][l][head]["output_error"]
        for l, layer in enumerate([0, 2])
        for head in range(4)
    }
    assert rows_of(tab, "heads") == sorted(errors, key=errors.__getitem__)
    worst = max(errors, key=errors.__getitem__)
    page.locator("#heads-table tbody th button").last.press("Enter")
    layer, head = worst.split(".")
    assert tab.text("#stats-title") == f"Layer {layer}, head {head} with elu"
    current = page.locator("#heads-table tr[aria-current] th button")
    assert current.inner_text() == worst
    assert current.evaluate("(button) => button === document.activeElement")


def test_heads_are_chosen_with_arrow_keys_and_maps_with_a_dot(open_report, comparison):
    tab = open_report(comparison, fragment="#layer=0&head=0&map=elu")
    page = tab.page
    page.locator("#mosaic [aria-pressed=true]").focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
    assert tab.text("#stats-title") == "Layer 2, head 1 with elu"
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith(
        "layer 2, head 1"
    )
    dot = page.locator("#pareto .dot", has_text=re.compile("taylor 2"))
    dot.focus()
    page.keyboard.press("Enter")
    assert tab.text("#stats-title") == "Layer 2, head 1 with taylor 2"
    page.locator("#pareto .dot", has_text=re.compile("poly 2")).locator(".target").click()
    assert tab.text("#title-map") == "poly 2"
    page.click("#next-head")
    assert tab.text("#stats-title") == "Layer 2, head 2 with poly 2"


def test_charts_show_every_map_every_family_and_the_crossover(open_report, comparison):
    loud = copy.deepcopy(comparison)
    for point in loud["curves"][2]["points"]:
        point["output_error"] = 1e6  # far above looking at nothing, so it is cut off
    tab = open_report(loud)
    page = tab.page
    assert page.locator("#curves path.point").count() >= 5
    assert "triangle" in page.locator("#curves-reading").text_content()
    ticks = page.locator("#curves .tick[text-anchor=end]").all_text_contents()
    assert max(map(float, ticks)) < 10
    for x, y in [("time", "output"), ("memory", "mse")]:
        page.locator(f"#pareto-x input[value={x}]").check(force=True)
        page.locator(f"#pareto-y input[value={y}]").check(force=True)
        assert page.locator("#pareto .dot").count() == len(comparison["maps"])
    stems = sum(row["summary"]["limit_mse"] is not None for row in comparison["maps"])
    assert page.locator("#pareto .bound-stem").count() == stems
    page.locator("#curves-y input[value=mse]").check(force=True)
    assert page.locator("#curves .line").count() == len(comparison["curves"])
    assert page.locator("#curves .limit").count() == 1
    assert page.locator("#timing .point").count() == 14
    for chart in ("#pareto", "#curves"):
        assert page.locator(f"{chart} .level").text_content() == "uniform weights"
    assert tab.page.locator("#crossover").text_content() == "crossover n ≈ 849"


def test_hostile_texts_are_shown_as_text(open_report, comparison):
    tab = open_report(hostile(comparison))
    assert tab.page.locator("#source").text_content() == HOSTILE[0]
    assert tab.page.locator("#notes li").all_text_contents()[:5] == HOSTILE[:5]
    assert tab.page.locator("script").count() == 3
    assert tab.page.locator("img").count() == 0
    check_width_and_colours(tab.page)


def test_gaps_in_the_data_are_shown_as_gaps(open_report, comparison):
    bare = copy.deepcopy(comparison)
    bare["data"]["tokens"] = bare["timing"] = bare["maps"][0]["heads"][0][0] = None
    bare["softmax"]["heads"][0][0] = None
    bare["picture"]["maps"] = bare["picture"]["maps"][1:]
    for row in (bare["softmax"], bare["uniform"], *bare["maps"]):
        row["ms_per_1000_tokens"] = None
    for row in bare["maps"]:
        row["summary"]["limit_kind"] = "estimate"
        for cell in (cell for line in row["heads"] for cell in line if cell):
            cell["limit_kind"] = "estimate"
    places = ("#pareto-reading", "#curves-legend", "#maps-section .reading")
    tab = open_report(bare, fragment="#layer=0&head=0&map=elu&error=mse&curve=mse")
    page = tab.page
    assert tab.text("#stats [data-key=mse] dd") == "–"
    assert tab.readout("map") == "–"
    assert "cannot be drawn" in tab.text("#panel-map .empty")
    assert page.locator("#timing-section").is_hidden()
    assert page.locator("#pareto .dot").count() == len(bare["maps"])
    assert page.locator("#pareto-x input").count() == 1  # without times, costs are bytes
    drawn, shown = page.locator("#curves svg").evaluate(
        "svg => [svg.viewBox.baseVal.width, svg.getBoundingClientRect().width]"
    )
    assert drawn == pytest.approx(shown, abs=1)
    assert all("estimate" in tab.text(place) for place in places)
    tab = open_report(comparison, fragment="#error=mse&curve=mse")
    assert not any("estimate" in tab.text(place) for place in (*places, "#stats"))


EVALUATION = {
    "format": "kerneltrick.evaluate/1", "version": "1", "source": "<b>out</b>", "windows": 4,
    "length": 512, "verdict": "Worth a look.",
    "rows": [
        {"name": name, "figures": {"perplexity": 20.0 + at, "0–63": 22.0, "64–511": 19.0 + 30 * at,
                                   "recall at 10%": 0.5},
         "state_bytes": 10_000 * (at + 1), "states": {"0–63": 8000, "64–511": 10_000 * (at + 1)}}
        for at, name in enumerate(("teacher", "hybrid", "window alone", "map alone"))
    ],
    "speeds": [
        {"name": name, "context": n, "prefill": 900.0, "decoding": 30.0 + at, "state_bytes": 5 * n}
        for n in (512, 2048) for at, name in enumerate(("teacher", "hybrid"))
    ],
    "continuations": [{"prompt": "Call me", "written": {"teacher": "Ishmael", "hybrid": "<i>"}}],
    "record": {
        "kept": {"1": "error 0.5"}, "window": "it is enough",
        "fit": {"before": {"0": [0.9, 0.8], "1": [0.7, 0.6]}, "after": {"0": [0.1, 0.2],
                "1": [0.5, 0.5]}, "history": [[1, 0.9], [20, 0.3]], "steps": 20},
        "tuned": {"trained": "lora", "history": [[0, 0.9], [20, 0.3]], "tokens": 10_000},
    },
}  # fmt: skip


def test_the_page_of_a_linearised_model_shows_its_figures(open_report):
    tab = open_report(EVALUATION, render=report.render_evaluation, color_scheme="light")
    assert tab.text("#source") == "<b>out</b>"
    assert rows_of(tab, "rows") == ["teacher", "hybrid", "window alone", "map alone"]
    assert "recall at 10%" in tab.text("#rows-table")
    assert tab.page.locator("#before .cell").count() == 4
    assert "mean 0.325" in tab.text("#after-title")
    assert "Layer 1 keeps softmax: error 0.5." in tab.text("#kept")
    assert tab.page.locator("#fit circle").count() == 3  # before the first step too
    assert tab.page.locator("#tuned circle").count() == 2
    for name in ("prefill", "decoding", "memory"):
        assert tab.page.locator(f"#{name} circle").count() == 4
    for hidden in ("#whole-section", "#curve-section"):
        assert not tab.page.locator(hidden).is_visible()
    colour = "getComputedStyle(document.querySelector('#after .cell')).backgroundColor"
    light = tab.page.evaluate(colour)
    tab.page.click("#theme")
    tab.page.click("#theme")
    assert tab.page.evaluate(colour) != light


def test_the_page_shows_what_each_head_sees_and_the_knee_of_the_curve(open_report):
    heads = {
        "window": 64,
        "sinks": 4,
        "scores": {"gate": [[1, 2, 3], [4, 5, 6]]},
        "whole": {"1": [0, 2]},
    }
    curve = [
        {"heads": n, "share": n / 6, "quality": y, "knee": n == 2}
        for n, y in ((0, 40.0), (2, 25.0), (6, 23.0))
    ]
    rows = copy.deepcopy(EVALUATION["rows"])
    rows[1]["errors"] = {"recall at 10%": 0.25}
    rows.append({**rows[1], "name": "window for all heads"})
    told = {**EVALUATION, "rows": rows, "curve": curve, "record": {"heads": heads}}
    tab = open_report(told, render=report.render_evaluation)
    names = tab.page.locator("#whole .cell").evaluate_all("all => all.map((x) => x.title)")
    assert len(names) == 6
    assert names[3:5] == [
        "layer 1, head 0: the whole text",
        "layer 1, head 1: a window of 64 tokens and 4 sinks",
    ]
    assert "2 of 6 see the whole text" in tab.text("#whole-reading")
    assert "the others see a window of 64 tokens and 4 sinks." in tab.text("#whole-reading")
    marks = tab.page.locator("#curve .point title").all_text_contents()
    assert marks[1] == "2 heads (33\xa0%): perplexity 25.00, the knee"
    assert tab.page.locator("#curve .note").all_text_contents() == ["knee"]
    assert "50\xa0% ± 25\xa0%" in tab.text("#rows-table")
    assert "window for all heads" in tab.page.locator("#size .note").all_text_contents()
    told["record"] = {"heads": heads, "bare": {"0": [1]}}
    tab = open_report(told, render=report.render_evaluation)
    names = tab.page.locator("#whole .cell").evaluate_all("all => all.map((x) => x.title)")
    near = "a window of 64 tokens and 4 sinks"
    assert names[1:4] == [
        f"layer 0, head 1: {near}",
        f"layer 0, head 2: {near}, and a map",
        "layer 1, head 0: the whole text",
    ]
    assert "1 do without a map" in tab.text("#whole-reading")


def test_quality_is_drawn_against_the_bytes_of_every_stretch_of_positions(open_report):
    tab = open_report(EVALUATION, render=report.render_evaluation)
    marks = tab.page.locator("#size .point title").all_text_contents()
    assert len(marks) == 8
    told = "perplexity 49.0, 19.5\xa0KiB per stream after them"
    assert marks[3] == f"hybrid, positions 64–511: {told}"
    assert tab.page.locator("#size path.point").count() == 2  # far above the teacher: triangles
    names = tab.page.locator("#size .note").all_text_contents()
    assert {"teacher", "hybrid", "window alone (79.0)", "map alone (109)"} <= set(names)
    short = copy.deepcopy(EVALUATION)
    for row in short["rows"]:
        row["states"] = {"perplexity": row["state_bytes"]}
    tab = open_report(short, render=report.render_evaluation)
    marks = tab.page.locator("#size .point title").all_text_contents()
    assert marks[0] == "teacher, all positions: perplexity 20.0, 9.77\xa0KiB per stream after them"
    assert len(marks) == 4


def test_what_is_written_is_coloured_from_the_word_that_leaves_the_teachers(open_report):
    written = {"teacher": " the white whale", "hybrid": " the wide sea", "map alone": " the white"}
    told = {**EVALUATION, "continuations": [{"prompt": "<i>", "written": written}]}
    tab = open_report(told, render=report.render_evaluation)
    shown = tab.page.locator(".written dd").all_text_contents()
    assert shown == [text.strip() for text in written.values()]
    assert tab.page.locator(".written .own").all_text_contents() == ["", "wide sea", ""]
    assert tab.text("#texts .prompt") == "… <i>"


def test_a_page_without_a_record_leaves_its_pictures_out(open_report):
    bare = {**EVALUATION, "record": None, "speeds": [], "continuations": []}
    tab = open_report(bare, render=report.render_evaluation)
    for name in ("heads-section", "fit-section", "tuned-section", "speeds", "texts-section"):
        assert not tab.page.locator(f"#{name}").is_visible()
    with pytest.raises(ValueError, match="has format 'x'; this report needs"):
        report.render_evaluation({**EVALUATION, "format": "x"})
    with pytest.raises(ValueError, match="has no 'record'"):
        report.render_evaluation(
            {name: EVALUATION[name] for name in EVALUATION if name != "record"}
        )


RECALL = {
    "format": "kerneltrick.recall/1", "version": "1",
    "settings": {"task": {"vocabulary": 128, "told": "Keys and <b>values</b>.", "chance": 1 / 64},
                 "steps": 40, "batch": 32, "seeds": 2, "rates": [0.01]},
    "points": [
        {"mixer": mixer, "width": width, "rate": 0.01, "bytes": 100 * width * (at + 1),
         "accuracy": 0.2 * at + width / 100, "lowest": 0.1, "highest": 0.9, "seeds": 2,
         "on_front": at == 2}
        for at, mixer in enumerate(("softmax@window=8", "<b>elu</b>", "based:feature_dim=8"))
        for width in (8, 32)
    ],
    "trainings": [
        {"mixer": mixer, "width": width, "rate": 0.01, "seed": 0, "accuracy": 0.5, "steps": 40,
         "seconds": 60.0, "curve": [[2, 4.9], [40, 4.1]]}
        for mixer in ("softmax@window=8", "<b>elu</b>", "based:feature_dim=8") for width in (8, 32)
    ],
    "published": {"gated DeltaNet": [[17_000, 0.89], [67_000, 0.99]], "RWKV-7": [[67_000, 0.98]]},
}  # fmt: skip
INSPECTION = {
    "format": "kerneltrick.inspect/1", "version": "1", "source": "<b>model</b>", "causal": True,
    "tokens": ["a", " ", "<i>b</i>", "\n", "ß" * 40], "rows": [0, 2, 4], "notes": ["a note"],
    "measures": [
        {"name": "reach", "label": "reach", "title": "reach", "meaning": "m", "style": "number"},
        {"name": "own", "label": "own", "title": "own", "meaning": "m", "style": "percent"},
    ],
    "layers": [
        {"name": "blocks.0", "kind": "x", "operator": operator, "memory": "local", "told": "told",
         "heads": [{"reach": reach, "reach_most": 2.0, "own": None, "memory": "local"}] * count}
        for operator, reach, count in (("delta rule", 3.0, 3), ("softmax", "inf", 1))
    ],
    # Rows of 1, 3 and 5 weights: 1; 1, 0, 0; −1, 0, 0, 0, 1.
    "pictures": [["ADwAPAAAAAAAvAAAAAAAAAA8"] * 3, ["ADwAPAAAAAAAvAAAAAAAAAA8"]],
}  # fmt: skip
PAGES = {
    "inspect": (report.render_inspection, lambda _: INSPECTION),
    "compare": (report.render_html, lambda comparison: comparison),
    "recall": (report.render_recall, lambda _: RECALL),
    "evaluation": (report.render_evaluation, lambda _: EVALUATION),
    "explore": (lambda _: report.render_explore(), lambda _: None),
}


@pytest.fixture(params=PAGES)
def open_page(request, open_report, comparison):
    """Each of the pages, to be opened with options."""
    render, values = PAGES[request.param]
    return lambda **options: open_report(values(comparison), render=render, **options)


def brightness(page: Any) -> int:
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    return sum(map(int, re.findall(r"\d+", paper)[:3]))


def check_width_and_colours(page: Any) -> None:
    for width in (1440, 768, 390):
        page.set_viewport_size({"width": width, "height": 844})
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            assert page.evaluate("document.scrollingElement.scrollWidth") <= width
            assert (brightness(page) > 600) == (scheme == "light")


MEETING = """() => [...document.querySelectorAll('.chart svg')].flatMap((svg) => {
  const texts = [...svg.querySelectorAll('.tick, .note')];
  const boxes = texts.map((x) => ({ box: x.getBoundingClientRect(), words: x.textContent }));
  const meet = ({ box: a }, { box: b }) => a.left < b.right - 1 && b.left < a.right - 1
    && a.top < b.bottom - 5 && b.top < a.bottom - 5;
  return boxes.flatMap((one, i) => [
    ...boxes.slice(i + 1).filter((x) => meet(one, x)).map((x) => `${one.words}, ${x.words}`),
    ...(one.box.left < 0 || one.box.right > innerWidth ? [`${one.words} is outside`] : []),
  ]);
})"""


def test_every_page_fits_its_screen_and_has_the_colours_that_are_chosen(open_page):
    """Boxes of ticks, names and notes in one chart do not meet, and print is light."""
    tab = open_page(color_scheme="light")
    check_width_and_colours(tab.page)
    for width in (1280, 400):
        tab.page.set_viewport_size({"width": width, "height": 844})
        tab.page.wait_for_timeout(100)
        assert tab.page.evaluate(MEETING) == []
    tab.page.emulate_media(color_scheme="light")
    for name, dark in (("Light", False), ("Dark", True), ("Auto", False), ("Light", False)):
        tab.page.click("#theme")
        assert tab.text("#theme-name") == name
        assert (brightness(tab.page) < 200) == dark
    tab.page.wait_for_url(re.compile("theme=light"))
    tab = open_page(color_scheme="light", fragment="#theme=dark")  # the address keeps it
    page = tab.page
    assert tab.text("#theme-name") == "Dark"
    assert page.locator("#theme").get_attribute("aria-label") == "Colours: dark"
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    for control in (".controls", ".segmented", "#theme"):
        assert not any(x.is_visible() for x in page.locator(control).all())


def test_a_seventh_line_does_not_look_like_the_first(open_report):
    """There are more lines than the six colours."""
    many = copy.deepcopy(RECALL)
    for at in range(8):
        more = {**RECALL["points"][0], "mixer": f"elu@window={at}", "bytes": 900 + at}
        many["points"].append({**more, "on_front": False})
    page = open_report(many, render=report.render_recall).page
    swatches = page.locator("#recall-legend .swatch")
    look = "(swatch) => getComputedStyle(swatch).background"
    assert len({x.evaluate(look) for x in swatches.all()}) == 11


def test_charts_of_an_encoder_are_drawn_for_the_room_they_have(open_report):
    encoder = copy.deepcopy(EVALUATION)
    for row in encoder["rows"]:
        row |= {"figures": {"cosine": 0.9}, "state_bytes": None, "states": {}}
    for speed in encoder["speeds"]:
        speed |= {"decoding": None, "state_bytes": None}
    tab = open_report(encoder, render=report.render_evaluation)
    assert tab.text("#speeds-title") == "Speed against length"
    for hidden in ("#decoding", "#memory", "#size-section", "#rows-table [data-key=state]"):
        assert not any(x.is_visible() for x in tab.page.locator(hidden).all())
    drawn = "[...document.querySelectorAll('.chart svg')].filter((x) => x.clientWidth)"
    wrong = f"{drawn}.filter((x) => Math.abs(x.viewBox.baseVal.width - x.clientWidth) > 1).length"
    assert tab.page.evaluate(wrong) == 0
