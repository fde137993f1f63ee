"""The explorable page: its arithmetic is the library's, and its controls and questions work."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_browser import Opened

import kerneltrick as kt
from kerneltrick import analysis, costs, maps, report

pytestmark = pytest.mark.xdist_group("browser")  # one browser


def render(_: Any) -> str:
    return report.render_explore()


@pytest.fixture(scope="module")
def tab(browser: Any, tmp_path_factory: Any) -> Iterator[Opened]:
    opened = Opened(browser, tmp_path_factory.mktemp("explore") / "x.html", {}, render=render)
    yield opened
    opened.close()


@pytest.fixture
def open_explorable(browser: Any, tmp_path: Path) -> Iterator[Any]:
    tabs: list[Opened] = []

    def opening(**options: Any) -> Opened:
        tabs.append(Opened(browser, tmp_path / "x.html", {}, render=render, **options))
        return tabs[-1]

    yield opening
    for each in tabs:
        each.close()


def asked(tab: Opened, script: str, *arguments: Any) -> np.ndarray:
    """Run a function of the page that returns numbers; NaN survives the way."""
    text = "Array.from(values, String)"
    call = f"(given) => {{ const values = ({script})(...given); return {text}; }}"
    return np.array([float(x) for x in tab.page.evaluate(call, list(arguments))])


IN_PLANE = [
    ("favor", {"features": 16, "kind": "trig", "seed": 3}),
    ("favor", {"features": 64, "kind": "positive", "seed": 39}),
    ("favor", {"features": 2, "kind": "hyperbolic", "seed": 0}),
    ("poly", {"degree": 3, "constant": 0.25}),
    ("taylor", {"order": 5}),
    ("hedgehog", {"activation": "exp"}),
    ("hedgehog", {"separate": "true"}),
    ("t2r", {"seed": 5}),
    ("cosformer", {"horizon": 300}),
    ("focused", {"power": 7.5}),
    *((name, {}) for name in maps.names()),
]


def text_of(name: str, parameters: dict[str, Any]) -> str:
    fixed = {"t2r": {"features": 16}, "favor": {"features": 16}, "cosformer": {"horizon": 128}}
    given = {**fixed.get(name, {}), **parameters}
    return name + ":" * bool(given) + ",".join(f"{key}={value}" for key, value in given.items())


@pytest.mark.parametrize(("name", "parameters"), IN_PLANE, ids=lambda x: str(x))
def test_weights_in_the_plane_are_those_of_the_library(tab, name, parameters):
    q, k = 1.5 * np.random.default_rng(0).standard_normal((2, 7, 2))
    script = """(name, parameters, q, k) => {
      const { state, plane, planeSetting, planeHead, mapWeights, softmaxWeights, judge } =
        kerneltrick;
      const before = { ...state };
      for (const [key, value] of Object.entries(parameters)) state[`${name}.${key}`] = value;
      const [oldQ, oldK] = [plane.q, plane.k];
      Object.assign(plane, { q: Float64Array.from(q), k: Float64Array.from(k) });
      const head = planeHead();
      const [softmax, map] = [softmaxWeights(head), mapWeights(head, planeSetting(name))];
      const judged = judge(map, softmax, head.n);
      Object.assign(state, before);
      Object.assign(plane, { q: oldQ, k: oldK });
      const { mse, condition, negative, undefinedRows } = judged;
      return [...softmax, ...map, mse, condition, negative, undefinedRows];
    }"""
    found = asked(tab, script, name, parameters, q.ravel().tolist(), k.ravel().tolist())
    softmax, weights, numbers = found[:49].reshape(7, 7), found[49:98].reshape(7, 7), found[98:]
    text = text_of(name, parameters)
    truth = kt.attention_weights(q, k, text, on_zero="nan")
    _, exact = kt.softmax_attention(q, k, k, return_weights=True)
    np.testing.assert_allclose(softmax, exact, atol=1e-12)
    large = max(1.0, np.nanmax(np.abs(truth))) ** 2  # a sum that cancels magnifies rounding
    np.testing.assert_allclose(weights, truth, rtol=0, atol=1e-11 * large)
    quality = analysis.analyze_map(q, k, k, text)
    assert numbers[0] == pytest.approx(quality.weights.mse, rel=1e-6, abs=1e-15)
    assert numbers[1] == pytest.approx(quality.condition_number, rel=1e-6)
    assert numbers[2] == pytest.approx(quality.negative_fraction)
    assert numbers[3] == quality.weights.undefined_rows


def test_the_dial_has_the_weights_errors_and_costs_of_the_library(tab):
    entries = tab.page.evaluate("kerneltrick.dial.maps.map(({ map }) => map)")
    sides = "(head) => ['q', 'k', 'v'].flatMap((x) => [...kerneltrick.dialHead(head)[x]])"
    rows = np.arange(0, 128, 15)
    script = """(head, text, window, sinks) => {
      const { weights, error } = kerneltrick.dialAt(head, text, window, sinks);
      return [error, ...weights.filter((_, at) => Math.floor(at / 128) % 15 === 0)];
    }"""
    for head in ("0.4", "1.0"):  # of the sample, and synthetic
        q, k, v = asked(tab, sides, head).reshape(3, 128, 32)
        exact = kt.softmax_attention(q, k, v, causal=True)
        for text in entries:
            for window, sinks in ((0, 0), (5, 2), (128, 0)):
                found = asked(tab, script, head, text, window, sinks)
                truth = kt.attention_weights(q, k, text, causal=True, window=window, sinks=sinks)
                weights = found[1:].reshape(len(rows), 128)
                np.testing.assert_allclose(weights, truth[rows], atol=1e-9)
                error = np.linalg.norm(truth @ v - exact) / np.linalg.norm(exact)
                assert found[0] == pytest.approx(error, abs=1e-9)
    for text in entries:
        for window, sinks in ((0, 0), (8, 1), (100, 8), (128, 0)):
            setting = kt.Dial(maps.get(text), window, sinks)
            if not (setting.near or setting.feature_map.has_features):
                continue  # softmax itself: the page counts it as a window of n
            script = """(text, window, sinks) => {
              const entry = kerneltrick.dial.maps.find(({ map }) => map === text);
              const sizes = { n: 128, d: 32, width: 32 };
              const { products, bytes } =
                kerneltrick.countDial({ ...sizes, ...entry, window, sinks });
              return [products, bytes];
            }"""
            products, held = asked(tab, script, text, window, sinks)
            cost = costs.windowed(setting, causal=True).at(n=128, D=32, M=32)
            assert (products, held) == (cost.multiply_adds, cost.memory), text


def test_both_orders_are_counted_as_by_the_library(tab):
    for n, d, width in ((96, 16, 16), (7, 5, 3)):
        script = """(n, d, width) => {
          const { weights, state, crossover } = kerneltrick.countOrders({ n, d, width });
          return [weights.products, weights.bytes, state.products, state.bytes, crossover];
        }"""
        found = asked(tab, script, n, d, width)
        sizes = {"n": n, "D": d, "M": width}
        parts = costs.linear("identity").at(**sizes).parts
        assert found[0] == costs.softmax().at(**sizes).multiply_adds
        assert found[2] == parts["U"] + parts["φ(Q)U"]
        assert (found[1], found[3]) == (4 * n * n, 4 * d * width)
        assert found[4] ** 2 * (d + width) == pytest.approx(2 * found[4] * d * width)


def deltas(k: np.ndarray, v: np.ndarray, a: float, beta: float, start: float = 0) -> np.ndarray:
    """The state S of the delta rule after all tokens."""
    first = kt.DeltaState(np.full((k.shape[1], v.shape[1]), float(start)))
    options = {"log_decay": math.log(a), "state": first, "return_state": True}
    _, state = kt.delta_rule(k, k, v, beta, **options)
    return np.asarray(state.S)


@pytest.mark.parametrize("kind", ["apart", "alike"])
def test_a_stream_adds_and_corrects_as_the_library_does(tab, kind):
    for decay, beta in ((1.0, 1.0), (0.9, 1.6)):
        script = """(kind, decay, beta) => {
          const { k, v } = kerneltrick.streamTokens("often", kind);
          const given = { k, v, n: 16, d: 8, width: 8, decay, beta };
          const run = (corrects) => kerneltrick.runStream({ ...given, corrects });
          return [...k, ...v, ...run(false), ...run(true)];
        }"""
        found = asked(tab, script, kind, decay, beta)
        k, v = found[:256].reshape(2, 16, 8)
        _, state = kt.linear_attention(
            k,
            k,
            v,
            "identity",
            causal=True,
            normalize=False,
            log_decay=math.log(decay),
            return_state=True,
        )
        read = kt.linear_attention(
            np.eye(8), np.zeros((0, 8)), np.zeros((0, 8)), "identity", normalize=False, state=state
        )
        np.testing.assert_allclose(found[256:320].reshape(8, 8), read, atol=1e-12)
        corrected = found[320:].reshape(8, 8)
        np.testing.assert_allclose(corrected, deltas(k, v, decay, beta), atol=1e-12)
    bits = [1, 1, 0, 1, 0]
    for beta in (0.5, 2.0):
        states = asked(tab, "(bits, beta) => kerneltrick.parityStates(bits, beta)", bits, beta)
        keys = np.array(bits, float)[:, None]
        for t in range(5):
            truth = deltas(keys[: t + 1], np.zeros((t + 1, 1)), 1.0, beta, start=1)
            assert states[t] == pytest.approx(float(truth[0, 0]))
    assert states.tolist() == [-1, 1, 1, -1, -1]  # β = 2: the parity


@pytest.mark.parametrize("text", ["identity", "elu", "relu", "poly:degree=2", "taylor:order=2"])
def test_recall_reads_what_the_library_reads(tab, text):
    script = """(text, corrects, passes) => {
      const task = kerneltrick.firstPairs(8, 1, 12);
      const setting = kerneltrick.recallSetting(text, 1);
      const read = kerneltrick.recallRead(task, setting, corrects, passes);
      return [...task.keys, ...task.values, ...read,
              kerneltrick.recallShare(task, setting, corrects, passes)];
    }"""
    for corrects, passes in ((False, 1), (True, 1), (True, 3)):
        found = asked(tab, script, text, corrects, passes)
        keys, values = found[:96].reshape(12, 8), found[96:288].reshape(12, 16)
        if corrects:
            phi = maps.get(text)
            features = phi.phi(keys * math.sqrt(phi.default_scale(8)))
            size = np.linalg.norm(features, axis=1, keepdims=True)
            features = features / np.where(size == 0, 1, size)
            state = deltas(np.tile(features, (passes, 1)), np.tile(values, (passes, 1)), 1, 1)
            read = features @ state
        else:
            read = kt.linear_attention(keys, keys, values, text, normalize=False)
        np.testing.assert_allclose(found[288:-1].reshape(12, 16), read, atol=1e-9)
        assert found[-1] == np.mean(np.argmax(read @ values.T, axis=1) == np.arange(12))


@pytest.mark.parametrize("kind", ["positive", "hyperbolic", "trig"])
def test_draws_of_favor_are_the_librarys(tab, kind):
    script = """(kind) => {
      const { plane, planeSetting, favorEstimates, favorVariance } = kerneltrick;
      const setting = planeSetting("favor");
      setting.parameters.kind = kind;
      const { estimates, truth, q, k } = favorEstimates(setting);
      return [...q, ...k, truth, favorVariance(setting.parameters, q, k), ...estimates];
    }"""
    found = asked(tab, script, kind)
    q, k = found[:2][None], found[2:4][None]
    assert found[4] == pytest.approx(float(np.exp(q @ k.T)[0, 0]))
    for seed, estimate in enumerate(found[6:]):
        phi = maps.get(f"favor:features=16,kind={kind},seed={seed}")
        assert estimate == pytest.approx(float((phi(q) @ phi(k).T)[0, 0]), rel=1e-9)
    dot, both = float((q @ k.T)[0, 0]), float(np.sum((q + k) ** 2))
    apart = float(np.sum((q - k) ** 2))
    variance = {
        "positive": math.exp(2 * dot) * (math.exp(both) - 1) / 16,
        "hyperbolic": math.exp(2 * dot) * (math.exp(both) - 1) * (1 - math.exp(-both)) / 16,
        "trig": math.exp(both - 2 * dot) * (1 - math.exp(-apart)) ** 2 / 16,
    }
    assert found[5] == pytest.approx(variance[kind])


def answer(tab: Opened, question: str, given: str | int | None = None) -> str:
    form = tab.page.locator(f"#question-{question}")
    if isinstance(given, int):
        form.locator("input[type=radio]").nth(given).check()
    elif given is not None:
        form.locator("input").fill(given)
    form.locator("button").click()
    return form.locator(".verdict").inner_text()


def test_the_page_checks_the_answers_to_its_questions(open_explorable):
    tab = open_explorable()
    assert answer(tab, "orders-1", "1").startswith("Not yet.")
    assert tab.text("#progress") == "0 of 15 questions answered"
    right = {
        "orders-1": "64",
        "orders-2": 1,
        "orders-3": "16384",
        "map-2": 2,
        "map-3": "2,0",
        "dial-1": "128",
        "dial-3": 0,
        "stream-1": "4",
        "stream-2": "7",
        "recall-1": 2,
        "recall-2": 1,
        "recall-3": "128",
    }
    for question, given in right.items():
        wrong = (given + 1) % 3 if isinstance(given, int) else "3"
        assert answer(tab, question, wrong).startswith("Not yet."), question
        assert answer(tab, question, given).startswith("Right."), question
    window = int(tab.page.evaluate("kerneltrick.smallestWindow(0.1)"))
    assert answer(tab, "dial-2", str(window + 1)).startswith("Not yet.")
    assert answer(tab, "dial-2", str(window)).startswith("Right.")
    assert answer(tab, "stream-3").startswith("Not yet.")
    tab.page.locator("#control-flip").fill("2")
    assert answer(tab, "stream-3").startswith("Right.")
    tab.page.select_option("#control-map", "relu")
    tab.page.evaluate("kerneltrick.plane.q.fill(1); kerneltrick.drawPlane()")
    assert answer(tab, "map-1").startswith("Not yet.")
    tab.page.evaluate("kerneltrick.plane.q.fill(-1); kerneltrick.drawPlane()")
    assert answer(tab, "map-1").startswith("Right.")
    assert tab.text("#progress") == "15 of 15 questions answered"
    # What the questions about recall call right is what the page computes.
    held = "([map, size, rule, passes]) => kerneltrick.capacity(map, size, rule, passes)"
    hold = {
        key: tab.page.evaluate(held, key)
        for key in (
            ("identity", 2, "adds", 1),
            ("elu", 2, "adds", 1),
            ("taylor:order=2", 2, "adds", 1),
            ("elu", 3, "adds", 8),
            ("elu", 3, "corrects", 8),
        )
    }
    assert max(list(hold)[:3], key=hold.__getitem__)[0] == "taylor:order=2"
    assert hold["elu", 3, "corrects", 8] > hold["elu", 3, "adds", 8]


WRITINGS = (
    *("16384", "16,384", "16.384", "16 384", "16\u202f384", "16384 bytes", "16384 B", "= 16384"),
    *(
        "2^14",
        "2**14",
        "2¹⁴",
        "4·64·64",
        "4*64*64",
        "4 x 64 x 64",
        "4·64²",
        "16k",
        "16 KiB",
        "16k bytes",
    ),
)


def test_a_number_is_right_however_people_write_it(open_explorable):
    tab = open_explorable()
    for text in WRITINGS:
        assert answer(tab, "orders-3", text).startswith("Right."), text
    for text in ("bytes", "16,38", "1,6384", "16385", "2^13", "4·64", "16 MiB", "-16384", "1e999"):
        assert answer(tab, "orders-3", text).startswith("Not yet."), text
    assert answer(tab, "map-3", "2,0").startswith("Right.")


def test_answers_and_moved_points_are_there_when_the_page_is_loaded_again(open_explorable):
    tab = open_explorable()
    page = tab.page
    answer(tab, "orders-2", 1)
    answer(tab, "orders-3", "2^14")
    answer(tab, "dial-1", "3")  # wrong, so it is not kept
    page.locator("#plane").focus()
    for _ in range(4):
        page.keyboard.press("ArrowUp")
    moved = page.evaluate("[...kerneltrick.plane.q]")
    page.locator("#control-points").fill("9")
    wait_until(page, "kerneltrick.plane.q.length === 18")
    assert page.evaluate("[...kerneltrick.plane.q]")[:16] == moved
    page.click("#theme")  # draws all again
    page.reload()
    assert tab.text("#progress") == "2 of 15 questions answered"
    assert page.locator("#question-orders-2 input").nth(1).is_checked()
    assert page.locator("#question-orders-3 input").input_value() == "2^14"
    assert tab.text("#question-orders-3 .verdict").startswith("Right.")
    assert tab.text("#question-dial-1 .verdict") == ""
    assert page.evaluate("[...kerneltrick.plane.q]")[:16] == moved
    page.get_by_role("button", name="Start again").click()
    wait_until(page, f"kerneltrick.plane.q[1] !== {moved[1]}")


def test_on_a_phone_a_swipe_scrolls_and_all_chapters_are_in_sight(open_explorable):
    tab = open_explorable(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    page = tab.page
    links = page.locator(".chapters a")
    for i in range(links.count()):
        box = links.nth(i).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator("#plane").scroll_into_view_if_needed()
    touch = page.context.new_cdp_session(page)

    def swipe(x: float, y: float) -> tuple[float, list[float]]:
        """Move a finger up by 120 pixels; return how far the page moved, and the points."""
        before = page.evaluate("scrollY")
        send = lambda kind, *at: touch.send(  # noqa: E731
            "Input.dispatchTouchEvent",
            {"type": kind, "touchPoints": [{"x": at[0], "y": at[1]}] if at else []},
        )
        send("touchStart", x, y)
        for step in range(1, 13):
            send("touchMove", x, y - 10 * step)
        send("touchEnd")
        page.wait_for_timeout(300)
        return page.evaluate("scrollY") - before, page.evaluate("[...kerneltrick.plane.q]")

    page.evaluate(
        "kerneltrick.plane.q.fill(-2); kerneltrick.plane.k.fill(-2); kerneltrick.drawPlane()"
    )
    start = page.evaluate("[...kerneltrick.plane.q]")
    box = page.locator("#plane").bounding_box()
    scrolled, points = swipe(box["x"] + box["width"] / 2, box["y"] + box["height"] * 2 / 3)
    assert (scrolled > 50, points) == (True, start)
    box = page.locator("#plane").bounding_box()
    scrolled, points = swipe(box["x"] + box["width"] / 6, box["y"] + box["height"] * 5 / 6)
    assert (scrolled, points != start) == (0, True)


def wait_until(page, condition):
    """As `page.wait_for_function`, whose eval the page's policy forbids after the first try."""
    for _ in range(600):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(50)
    raise AssertionError(f"after half a minute still not: {condition}")


def test_points_move_by_mouse_and_by_keys_and_the_weights_follow(open_explorable):
    page = open_explorable().page
    canvas = page.locator("#plane")
    canvas.scroll_into_view_if_needed()
    before = page.evaluate("Array.from(kerneltrick.plane.shown.map)")
    box = canvas.bounding_box()
    x, y = page.evaluate("[kerneltrick.plane.k[0], kerneltrick.plane.k[1]]")
    start = (box["x"] + (x + 3) / 6 * box["width"], box["y"] + (3 - y) / 6 * box["height"])
    page.mouse.move(*start)
    page.mouse.down()
    page.mouse.move(start[0] + 20, start[1] - 10)
    page.mouse.up()
    wait_until(page, "kerneltrick.frameTimes.drawPlane !== undefined")
    assert page.evaluate("kerneltrick.plane.chosen.side") == "k"
    moved = page.evaluate("Array.from(kerneltrick.plane.shown.map)")
    assert moved != before
    canvas.focus()
    page.keyboard.press("PageDown")
    page.keyboard.press("ArrowUp")
    assert page.evaluate("kerneltrick.plane.chosen.at") == 1
    wait_until(page, f"kerneltrick.plane.shown.map[0] !== {moved[0]}")
    assert "Key 2 is at" in canvas.get_attribute("aria-label")


def test_the_address_keeps_the_controls_and_opens_a_chapter(open_explorable):
    tab = open_explorable(fragment="#chapter=dial&window=64&far=relu&map=poly&poly.degree=4&n=7e9")
    page = tab.page
    assert page.locator("#control-window").input_value() == "64"
    assert page.locator("#control-far").input_value() == "relu"
    assert page.locator("#control-n").input_value() == "256"  # as far as the slider goes
    assert tab.text("label[for='control-poly.degree']") == "degree"
    assert page.locator("[id='control-taylor.order']").is_hidden()
    assert page.evaluate("document.querySelector('#dial').getBoundingClientRect().top") < 200
    page.locator("#control-sinks").fill("3")
    page.wait_for_url("**sinks=3**")
    names = page.evaluate("""() => [...document.querySelectorAll('input, select, canvas, button')]
      .filter((x) => !(x.labels?.length || x.textContent.trim() || x.getAttribute('aria-label')))
      .map((x) => x.outerHTML)""")
    assert names == []  # every control and picture has a name for a screen reader


def test_a_guess_comes_before_the_curve(open_explorable):
    tab = open_explorable()
    assert tab.page.locator("#recall-chart").is_hidden()
    assert tab.text("#recall-told [data-key=capacity] dd") == "guess first"
    tab.page.fill("#guess", "20")
    tab.page.click("#recall-guess button")
    tab.page.wait_for_selector("#recall-chart .line")
    held = tab.page.evaluate("kerneltrick.capacity()")
    assert tab.text("#recall-told [data-key=capacity] dd") == str(held)
    tab.page.select_option("#control-memory", "elu")
    assert tab.page.wait_for_selector("#recall-waiting", state="visible")


@pytest.mark.parametrize(
    ("lost", "words"),
    [
        ("ResizeObserver", "could not start: your browser lacks ResizeObserver. It needs"),
        ("CSS", "may look wrong: your browser lacks light-dark() colours, color-mix()"),
    ],
)
def test_a_browser_that_lacks_something_is_told_so(browser, tmp_path, lost, words):
    path = tmp_path / "x.html"
    path.write_text(report.render_explore(), encoding="utf-8")
    page = browser.new_page()
    page.add_init_script(f"delete window.{lost};")
    page.goto(path.as_uri())
    assert words in page.locator("#unsupported").inner_text()
    page.close()


def test_the_command_writes_the_page(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("explore")
    assert (code, out) == (0, "wrote explore.html: open it in a browser\n")
    page = Path("explore.html").read_text(encoding="utf-8")
    assert page == report.render_explore()
    code, out, _ = run("explore", "--html", "-")
    assert (code, out) == (0, page)
    code, _, told = run("explore", "--html", "no/folder/x.html")
    assert code == 2
    assert "no/folder" in told
