"""The pictures of the README and of the pages in docs/: `make figures`.

speed.png shows the time of the operator, a layer and a model against the length; it is measured by
benchmarks/levels.py. overview.png shows the weights that maps imply. report.png is the report of
the embedded sample in Chromium (it is left as it is where there is no Chromium). The others are
the simulations (`kerneltrick simulate`), counts (`kerneltrick costs`) and drawings of the pages.

python tools/make_figures.py            all of them
python tools/make_figures.py pages      those of the pages only; or speed, overview, screenshot
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import drawings
import numpy as np
from generated import ROOT, save_picture, save_png
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle

import kerneltrick as kt
from kerneltrick import costs, simulate
from kerneltrick._pictures import BLUE as TEAL
from kerneltrick._pictures import FAINT, GREEN, INK, LINE, PURPLE, picture_style, plain_numbers
from kerneltrick._pictures import ORANGE as RUST
from kerneltrick.analysis._windows import head_errors, setting_at, window_lengths

MAPS = ["elu", "favor:features=256", "taylor:order=2"]
PHONE = 6.2  # inches: a picture this wide can be read on a phone, with letters of 10 points


def topical_tokens(n: int = 48, d: int = 16, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Queries and keys of tokens that belong to a few topics, so that attention has structure."""
    rng = np.random.default_rng(seed)
    topics = rng.standard_normal((5, d)) * 1.6
    chosen = topics[np.repeat(rng.integers(0, 5, n // 4), 4)]
    return tuple(chosen + 0.6 * rng.standard_normal((n, d)) for _ in range(2))  # type: ignore


def overview() -> None:
    """Softmax and three maps on the same queries and keys, with the error of each."""
    q, k = topical_tokens()
    softmax = kt.softmax_attention(q, k, k, causal=True, return_weights=True)[1]
    weights = {text: kt.attention_weights(q, k, text, causal=True) for text in MAPS}
    errors = {
        text: float(np.linalg.norm(found - softmax) / np.linalg.norm(softmax))
        for text, found in weights.items()
    }
    save_picture(overview_figure(softmax, weights, errors), "overview.png", dpi=160)
    for text, error in errors.items():
        print(f"{text}: misses the softmax weights by {error:.0%}")


def overview_figure(
    softmax: np.ndarray, weights: dict[str, np.ndarray], errors: dict[str, float]
) -> Figure:
    top = float(np.quantile(softmax, 0.99))
    lower = np.tri(len(softmax), dtype=bool)
    with picture_style():
        figure = Figure(figsize=(PHONE, 2.2), layout="constrained")
        panels = figure.subplots(1, 4)
        for axes, (name, values) in zip(
            panels, {"softmax": softmax, **weights}.items(), strict=True
        ):
            picture = np.where(lower, values, np.nan)
            axes.imshow(picture, cmap="magma_r", vmin=0, vmax=top, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.set_title(name.replace(":", "\n") if ":" in name else f"\n{name}", fontsize=11)
            below = f"misses by {errors[name]:.0%}" if name in errors else "the target"
            axes.set_xlabel(below.replace("%", " %"), fontsize=11)
    return figure


def speed() -> None:
    """Measure and draw the operator, a layer and a model: benchmarks/levels.py."""
    sys.path.insert(1, str(ROOT / "benchmarks"))
    levels = importlib.import_module("levels")
    found = levels.measure()
    print(levels.table(found, levels.LENGTHS))
    save_picture(speed_figure(levels.LENGTHS, found), "speed.png", dpi=160)


def speed_figure(lengths: Sequence[int], found: dict[str, list[tuple[float, float]]]) -> Figure:
    titles = {"operator": "attention alone", "layer": "one layer", "model": "model of 4 layers"}
    with picture_style():
        figure = Figure(figsize=(PHONE, 3.2), layout="constrained")
        panels = figure.subplots(1, 3, sharey=True)
        for axes, (name, times) in zip(panels, found.items(), strict=True):
            linear, softmax = np.transpose(times)
            axes.loglog(lengths, softmax, "o-", color=RUST, ms=3.5, lw=1.8)
            axes.loglog(lengths, linear, "o-", color=TEAL, ms=3.5, lw=1.8)
            axes.set_title(titles[name], fontsize=11.5)
            axes.annotate(
                "", (lengths[-1], softmax[-1]), (lengths[-1], linear[-1]),
                arrowprops={"arrowstyle": "<-", "color": FAINT, "shrinkA": 5, "shrinkB": 5},
            )  # fmt: skip
            axes.text(
                0.97, 0.04, f"1/{softmax[-1] / linear[-1]:.2g} of\nthe time", ha="right",
                va="bottom", fontsize=12, color=TEAL, transform=axes.transAxes,
            )  # fmt: skip
            axes.set_xticks([lengths[0], 2048, lengths[-1]], ["256", "2k", "16k"], fontsize=10.5)
            axes.set_xlim(lengths[0] / 1.4, lengths[-1] * 1.6)
            axes.minorticks_off()
            axes.grid(axis="y", color=LINE)
        panels[0].set_yticks(
            [1e-3, 1e-2, 1e-1, 1, 10], ["1 ms", "10 ms", "100 ms", "1 s", "10 s"], fontsize=10.5
        )
        panels[0].text(
            0.06, 0.94, "softmax", color=RUST, transform=panels[0].transAxes, fontsize=12
        )
        panels[0].text(
            0.06, 0.85, "linear (elu)", color=TEAL, transform=panels[0].transAxes, fontsize=12
        )
        panels[1].set_xlabel("tokens", fontsize=11)
    return figure


def screenshot() -> None:
    from kerneltrick.cli._arguments import default_maps

    data = kt.analysis.sample()
    result = kt.analysis.compare(data, default_maps(data.q.shape[-2]), measure=False)  # no times
    print(result.verdict)
    with tempfile.TemporaryDirectory() as folder:
        page_path = Path(folder) / "report.html"
        kt.report.save_html(result, data, page_path)
        photograph(page_path, "report.png", 1420)


def inspected() -> None:
    """The page of `kerneltrick inspect` for the model that the package carries."""
    from kerneltrick.cli import main as command

    with tempfile.TemporaryDirectory() as folder:
        page_path = Path(folder) / "inspect.html"
        with contextlib.suppress(SystemExit):
            command(["inspect", "--html", str(page_path)])
        photograph(page_path, "inspect.png", 1760)


def photograph(page_path: Path, name: str, height: int) -> None:
    """Save the top of a page as a picture, if there is a browser."""
    chromium = shutil.which("chromium")
    if chromium is None:
        print(f"no chromium on PATH: {name} is left as it is")
        return
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-background-networking"]
        browser = playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = browser.new_page(viewport={"width": 1040, "height": height})
        page.goto(page_path.as_uri())
        page.wait_for_timeout(500)
        save_png(page.screenshot(type="png"), name)
        browser.close()


def pages() -> None:
    """The pictures of the theory pages, with the commands' default numbers."""
    drawn = {
        "moments": simulate.moments_figure(simulate.moments()),
        "scaling": simulate.scaling_figure(simulate.scaling()),
        "features": simulate.features_figure([simulate.features(size=s) for s in (0.5, 1.0)]),
        "representer": simulate.representer_figure(simulate.representer()),
        "svm": simulate.svm_figure(simulate.svm()),
        "complexity": costs.figure(costs.Sizes(n=4096, d=64), ["elu", "poly:degree=2"]),
        "communication": costs.communication_figure("elu", n=100_000_000, d=64, heads=16),
        "brackets": brackets(),
        "chunks": chunks(),
        "roots": drawings.roots(),
        "quadratic": quadratic(),
        "caches": drawings.caches(),
        "ridge": drawings.ridge(),
        "family": drawings.family(),
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


def brackets() -> Figure:
    """(QKᵀ)V and Q(KᵀV) as rectangles, to scale for n = 8d and M = d."""
    n, d, gap = 8.0, 1.0, 0.9
    with picture_style():
        figure = Figure(figsize=(PHONE, 5.3), layout="constrained")
        axes = figure.subplots()

        def matrix(left: float, middle: float, rows: float, columns: float, name: str,
                   colour: str = FAINT, fill: float = 0.25) -> float:  # fmt: skip
            corner = left, middle - rows / 2
            axes.add_patch(Rectangle(corner, columns, rows, fc=colour, alpha=fill, lw=0))
            axes.add_patch(Rectangle(corner, columns, rows, fill=False, ec=colour, lw=1.4))
            inside = columns > 2
            axes.text(
                left + columns / 2, middle if inside else middle + rows / 2 + 0.25, name,
                ha="center", va="center" if inside else "bottom", fontsize=12,
            )  # fmt: skip
            return left + columns

        def sign(left: float, middle: float, text: str) -> float:
            axes.text(left + gap / 2, middle, text, ha="center", va="center", fontsize=14)
            return left + gap

        def words(top: float, head: str, detail: str, colour: str) -> None:
            axes.text(0, top, head, fontsize=14, fontweight="bold", color=colour, va="top")
            axes.text(5.1, top - 0.12, detail, fontsize=11, va="top")

        first, second = 5.2, -6.6
        words(first + 7.3, "(QKᵀ)V", "makes n×n numbers, costs 2·n²·d", RUST)
        place = matrix(0, first, n, d, "Q")
        place = matrix(sign(place, first, "·"), first, d, n, "Kᵀ")
        place = matrix(sign(place, first, "="), first, n, n, "QKᵀ, n×n", RUST, 0.45)
        place = matrix(sign(place, first, "·"), first, n, d, "V")
        right = matrix(sign(place, first, "="), first, n, d, "O", INK)
        words(second + 6.3, "Q(KᵀV)", "makes d×d numbers, costs 2·n·d²", TEAL)
        place = matrix(0, second, d, n, "Kᵀ")
        place = matrix(sign(place, second, "·"), second, n, d, "V")
        place = matrix(sign(place, second, "="), second, d, d, "KᵀV", TEAL, 0.8)
        start = right - 3 * d - 2 * gap
        axes.add_patch(_arrow((place + 0.4, second), (start - 0.5, second), FAINT))
        place = matrix(start, second, n, d, "Q")
        place = matrix(sign(place, second, "·"), second, d, d, "KᵀV", TEAL, 0.8)
        matrix(sign(place, second, "="), second, n, d, "O", INK)
        axes.set(xlim=(-0.2, right + 0.2), ylim=(second - n / 2 - 0.2, first + 7.5), aspect="equal")
        axes.axis("off")
    return figure


def chunks(count: int = 4) -> Figure:
    """The causal n×n weights cut into chunks, and the state that goes from chunk to chunk."""
    with picture_style():
        figure = Figure(figsize=(PHONE, 3.9), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[1.15, 1])
        for row in range(count):
            top = count - row
            left.add_patch(Rectangle((0, top - 1), row, 1, fc=RUST, alpha=0.3, lw=0))
            inside = [(row, top - 1), (row + 1, top - 1), (row, top)]
            left.add_patch(Polygon(inside, fc=TEAL, alpha=0.75, lw=0))
            left.plot([0, row + 1], [top - 1, top - 1], color=INK, lw=0.8)
        left.add_patch(Rectangle((0, 0), count, count, fill=False, ec=INK, lw=1.2))
        left.text(
            1.35, 0.5, "the past, read\nfrom the state", ha="center", va="center", fontsize=11
        )
        left.text(2.75, 3.35, "the future:\nnot computed", ha="center", va="center", color=FAINT,
                  fontsize=11)  # fmt: skip
        left.text(1.65, 2.52, "C×C, masked", color=TEAL, fontsize=11)
        left.set_title("weights: keys →, queries ↓", fontsize=11.5)
        box = {"boxstyle": "round,pad=0.3", "fc": "#f0d0bb", "ec": RUST}
        centred = {"ha": "center", "va": "center"}
        for row in range(count):
            top = count - row
            right.add_patch(Rectangle((0, top - 0.8), 0.95, 0.6, fc=TEAL, alpha=0.75, lw=0))
            right.text(0.475, top - 0.5, f"chunk {row + 1}", color="white", fontsize=11, **centred)
            right.text(1.9, top, "U" if row else "U = 0", fontsize=12, bbox=box, **centred)
            right.add_patch(_arrow((1.62, top - 0.1), (0.97, top - 0.35), RUST))
            right.add_patch(_arrow((0.97, top - 0.62), (1.84, top - 0.66), TEAL))
            right.add_patch(_arrow((1.9, top - 0.2), (1.9, top - 0.8), INK))
        right.text(1.9, 0, "U", fontsize=12, bbox=box, **centred)
        right.text(1.2, count - 0.1, "read", color=RUST, ha="center", fontsize=11)
        right.text(1.2, count - 0.9, "add KᵀV", color=TEAL, ha="center", fontsize=11)
        right.set_title("one state, m×M, at a time", fontsize=11.5)
        left.set(xlim=(-0.05, count + 0.05), ylim=(-0.05, count + 0.05), aspect="equal")
        right.set(xlim=(-0.05, 2.3), ylim=(-0.3, count + 0.3))
        left.axis("off")
        right.axis("off")
    return figure


def _arrow(start: tuple[float, float], end: tuple[float, float], colour: str) -> FancyArrowPatch:
    return FancyArrowPatch(start, end, arrowstyle="-|>", mutation_scale=11, color=colour, lw=1.3)


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
    parts = {"speed": speed, "overview": overview, "screenshot": screenshot, "inspected": inspected,
             "pages": pages}  # fmt: skip
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
