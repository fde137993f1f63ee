"""The pictures of the README and of the pages in docs/: `make figures`.

overview.png: weights that maps imply, and time against n. report.png: the report of the embedded
sample as Chromium shows it (left as it is where there is no Chromium). The others are the
simulations (`kerneltrick simulate`) and counts (`kerneltrick costs`) of the pages.

python tools/make_figures.py            all of them
python tools/make_figures.py pages      those of the pages only; or overview, screenshot
"""

from __future__ import annotations

import argparse
import math
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from generated import save_picture, save_png
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import kerneltrick as kt
from kerneltrick import costs, simulate
from kerneltrick._pictures import BLUE as TEAL
from kerneltrick._pictures import FAINT, GREEN, INK, LINE, PURPLE, picture_style, plain_numbers
from kerneltrick._pictures import ORANGE as RUST
from kerneltrick.analysis._windows import head_errors, setting_at, window_lengths

MAPS = ["elu", "favor:features=256", "taylor:order=2"]
LENGTHS = [256, 512, 1024, 2048, 4096, 8192]


def topical_tokens(n: int = 48, d: int = 16, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys of tokens that belong to a few topics, so that attention has structure."""
    rng = np.random.default_rng(seed)
    topics = rng.standard_normal((5, d)) * 1.6
    chosen = topics[np.repeat(rng.integers(0, 5, n // 4), 4)]
    return tuple(chosen + 0.6 * rng.standard_normal((n, d)) for _ in range(2))  # type: ignore


def seconds(call, repeats: int = 7) -> float:
    call()
    best = math.inf
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
    return best


def overview() -> None:
    torch.set_num_threads(2)
    times = measured()
    with picture_style():
        figure = Figure(figsize=(10.4, 2.6), layout="constrained")
        panels = figure.subplots(1, 5, width_ratios=[1, 1, 1, 1, 1.7])
        draw_weights(panels[:4])
        draw_times(panels[4], times)
    save_picture(figure, "overview.png", dpi=160)
    for n, linear, softmax in zip(LENGTHS, *times.values(), strict=True):
        print(f"n = {n:5}: linear {linear * 1e3:7.2f} ms, softmax {softmax * 1e3:7.2f} ms")


def measured() -> dict[str, list[float]]:
    """Seconds of linear and of softmax attention at each length."""
    attention = torch.nn.functional.scaled_dot_product_attention
    found: dict[str, list[float]] = {"linear_attention, elu": [], "softmax (PyTorch)": []}
    linear, quadratic = found.values()
    for n in LENGTHS:
        tensors = [torch.randn(1, 8, n, 64) for _ in range(3)]
        with torch.no_grad():
            linear.append(seconds(lambda x=tensors: kt.linear_attention(*x, "elu", causal=True)))
            quadratic.append(seconds(lambda x=tensors: attention(*x, is_causal=True), 3))
    return found


def draw_weights(panels: np.ndarray) -> None:
    """Softmax and three maps on the same queries and keys."""
    q, k = topical_tokens()
    _, softmax = kt.softmax_attention(q, k, k, causal=True, return_weights=True)
    shown = {"softmax": softmax}
    for text in MAPS:
        shown[text] = kt.attention_weights(q, k, text, causal=True)
    top = float(np.quantile(softmax, 0.99))
    lower = np.tri(len(q), dtype=bool)
    for axes, (name, weights) in zip(panels, shown.items(), strict=True):
        picture = np.where(lower, weights, np.nan)
        axes.imshow(picture, cmap="magma_r", vmin=0, vmax=top, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        error = np.linalg.norm(weights - softmax) / np.linalg.norm(softmax)
        axes.set_title(name.replace(":", "\n", 1) if ":" in name else name + "\n")
        axes.set_xlabel("keys j ≤ i" if name == "softmax" else f"error {error:.2f}", color=FAINT)
    panels[0].set_ylabel("queries i")


def draw_times(axes: Axes, times: dict[str, list[float]]) -> None:
    for (name, values), colour in zip(times.items(), (TEAL, RUST), strict=True):
        axes.loglog(LENGTHS, np.array(values) * 1e3, "o-", color=colour, ms=3.5, lw=1.6, label=name)
    axes.set_xticks([256, 1024, 4096], ["256", "1024", "4096"])
    axes.minorticks_off()
    axes.grid(axis="y", color=LINE)
    axes.legend(loc="upper left", borderaxespad=0)
    axes.margins(y=0.3)
    axes.set_xlabel("tokens n")
    axes.set_title(f"milliseconds, 2 cores, 8 heads × 64,\ncausal; kerneltrick {kt.__version__}")


def screenshot() -> None:
    chromium = shutil.which("chromium")
    if chromium is None:
        print("no chromium on PATH: report.png is left as it is")
        return
    from playwright.sync_api import sync_playwright

    from kerneltrick.cli._arguments import default_maps

    data = kt.analysis.sample()
    result = kt.analysis.compare(data, default_maps(data.q.shape[-2]))
    print(result.verdict)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_path = Path(folder) / "report.html"
        kt.report.save_html(result, data, page_path)
        arguments = ["--no-sandbox", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page(viewport={"width": 1240, "height": 1900})
        page.goto(page_path.as_uri())
        page.wait_for_timeout(500)
        save_png(page.screenshot(type="png"), "report.png")
        browser.close()


def pages() -> None:
    """The pictures of docs/01, 04, 05 and 06, of the commands' default numbers."""
    drawn = {
        "moments": simulate.moments_figure(simulate.moments()),
        "scaling": simulate.scaling_figure(simulate.scaling()),
        "features": simulate.features_figure([simulate.features(size=s) for s in (0.5, 1.0)]),
        "representer": simulate.representer_figure(simulate.representer()),
        "svm": simulate.svm_figure(simulate.svm()),
        "complexity": costs.figure(costs.Sizes(n=4096, d=64), ["elu", "poly:degree=2"]),
        "communication": costs.communication_figure("elu", n=100_000_000, d=64, heads=16),
        "quadratic": quadratic(),
        "decoding": decoding(),
        "dial": dial(),
    }
    for name, figure in drawn.items():
        save_picture(figure, f"{name}.png")


def dial() -> Figure:
    """Output error against the window on the sample, all heads together: maps, and no map."""
    data = kt.analysis.sample()
    q, k, v = (getattr(data, side).reshape(-1, *data.q.shape[2:]) for side in "qkv")
    windows = window_lengths(q.shape[-2])
    names = {"relu": GREEN, "favor:features=256": PURPLE, "hedgehog": TEAL, "taylor:order=2": RUST}
    with picture_style():
        figure = Figure(figsize=(6.8, 3.6), layout="constrained")
        axes = figure.subplots()
        place = [max(0.5, window) for window in windows]  # a logarithm has no 0
        for text, colour in {**names, "softmax": INK}.items():
            errors = []
            for window in windows:
                setting = setting_at(kt.Dial.get(text), window)
                lost, size = head_errors(q, k, v, setting, False, q.shape[-1] ** -0.5, 0)
                errors.append(math.sqrt(lost.sum() / size.sum()))
            style = "o--" if text == "softmax" else "o-"
            name = "the window alone" if text == "softmax" else text
            axes.loglog(place, errors, style, color=colour, ms=4, lw=1.4, label=name)
            print(f"{name:20}", *(f"{error:.2f}" for error in errors))
        axes.set_xticks(place, [str(window) for window in windows])
        plain_numbers(axes.yaxis)
        axes.minorticks_off()
        axes.grid(axis="y", color=LINE)
        axes.set(xlabel="window: exact are tokens less than so far away; 0: the map alone")
        axes.set_title("output error against softmax, sample, 36 heads together, first token exact")
        axes.legend()
    return figure


def quadratic() -> Figure:
    """(1+t)² and the Taylor polynomial beside e^t; m and the crossover length against d."""
    with picture_style():
        figure = Figure(figsize=(8.6, 3.3), layout="constrained")
        left, right = figure.subplots(1, 2)
        t = np.linspace(-3.2, 1.6, 200)
        for values, name, colour, style in (
            (np.exp(t), "$e^t$", INK, "-"),
            ((1 + t) ** 2, "$(1+t)^2$", RUST, "-"),
            (1 + t + t**2 / 2, "$1+t+t^2/2$", TEAL, "-"),
            (np.exp(2 * t), "$e^{2t}$", FAINT, ":"),
        ):
            left.plot(t, values, style, color=colour, lw=1.5, label=name)
        left.set(ylim=(-0.2, 5.5), xlabel="t = q·k", title="similarities")
        left.legend()
        d = [4, 8, 16, 32, 64, 128]
        count = [kt.maps.get("poly:degree=2").dim(width) for width in d]
        cross = [costs.crossover(costs.softmax(), costs.quadratic(), D=w, M=w) for w in d]
        right.loglog(d, count, "o-", color=TEAL, ms=4, label="features m = (d+1)(d+2)/2")
        right.loglog(d, cross, "o-", color=RUST, ms=4, label="cheaper than softmax from n =")
        right.set_xticks(d, [str(width) for width in d])
        right.minorticks_off()
        right.grid(axis="y", color=LINE)
        right.set(xlabel="width d = M", title="the price of (q·k + 1)²")
        right.legend()
    return figure


def decoding() -> Figure:
    """What has to be kept while decoding, against the tokens read so far."""
    n = np.geomspace(8, 65536, 60).astype(int)
    kept = {"b": 1, "d": 512, "h": 8}
    linear = {"elu": GREEN, "favor:features=256": PURPLE, "taylor:order=2": INK}
    with picture_style():
        figure = Figure(figsize=(6.4, 3.6), layout="constrained")
        axes = figure.subplots()
        for groups, name, colour in (
            (8, "cache, 8 key/value heads", RUST),
            (2, "cache, 2 (grouped)", "#d89a6a"),
            (1, "cache, 1 (multi-query)", TEAL),
        ):
            held = [float(costs.decoding(groups).at(n=int(x), **kept).memory) for x in n]
            axes.loglog(n, held, color=colour, lw=1.6, label=name)
        for text, colour in linear.items():
            state = float(costs.linear_decoding(text, 8).at(n=1, **kept).memory)
            axes.axhline(state, color=colour, lw=1.4, ls="--", label=f"state, {text}")
        axes.set(xlabel="tokens so far", title="bytes held, 8 heads × 64, float32, one sequence")
        axes.set_yticks([1e4, 1e5, 1e6, 1e7, 1e8], ["10 kB", "100 kB", "1 MB", "10 MB", "100 MB"])
        axes.set_xticks([16, 128, 1024, 8192, 65536], ["16", "128", "1024", "8192", "65536"])
        axes.minorticks_off()
        axes.grid(axis="y", color=LINE)
        axes.legend(loc="upper left", fontsize=7.5)
    return figure


def main() -> None:
    parts = {"overview": overview, "screenshot": screenshot, "pages": pages}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(parts))
    chosen = parser.parse_args().parts or list(parts)
    for name in chosen:
        if name not in parts:
            parser.error(f"there is no {name!r}; there are {', '.join(parts)}")
    for name in chosen:
        parts[name]()


if __name__ == "__main__":
    main()
