"""Drawings of the theory pages; tools/make_figures.py saves them."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

import kerneltrick as kt
from kerneltrick import costs
from kerneltrick._pictures import BLUE as TEAL
from kerneltrick._pictures import FAINT, GREEN, INK, LINE, PURPLE, picture_style
from kerneltrick._pictures import ORANGE as RUST

PHONE = 6.2  # inches: a picture this wide can be read on a phone, with letters of 10 points
CENTRED = {"ha": "center", "va": "center"}


def roots() -> Figure:
    """(1 + q·k)² as a table of products: what is off the diagonal occurs twice, hence √2."""
    names = ["1", "$x_1$", "$x_2$", "$x_3$"]
    count = len(names)

    def product(i: int, j: int) -> str:
        if i == j:
            return "1" if i == 0 else f"$x_{i}^2$"
        i, j = min(i, j), max(i, j)
        return f"$x_{j}$" if i == 0 else f"$x_{i}x_{j}$"

    with picture_style():
        figure = Figure(figsize=(PHONE, 4.1), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=[1.25, 1])
        for i in range(count):
            for j in range(count):
                colour = TEAL if i == j else RUST
                corner = (j, count - 1 - i)
                fill = 0.7 if i == j else 0.35 if i < j else 0.15
                left.add_patch(Rectangle(corner, 1, 1, fc=colour, alpha=fill, ec="white", lw=2))
                shade = "white" if i == j else INK
                place = (j + 0.5, count - 0.5 - i)
                left.text(*place, product(i, j), fontsize=14, color=shade, **CENTRED)
        for i, name in enumerate(names):
            left.text(i + 0.5, count + 0.25, name, fontsize=12, color=FAINT, **CENTRED)
            left.text(-0.25, count - 0.5 - i, name, fontsize=12, color=FAINT, **CENTRED)
        left.set_title("(1 + q·k)²: all 16 products", fontsize=12)
        left.text(2, -0.35, "equal across the diagonal", fontsize=11, color=RUST, **CENTRED)
        left.set(xlim=(-0.5, count), ylim=(-0.6, count + 0.5), aspect="equal")
        features = [(product(i, i), TEAL, "once") for i in range(count)]
        features += [
            (rf"$\sqrt{{2}}\,${product(i, j)}", RUST, "twice")
            for i in range(count)
            for j in range(i + 1, count)
        ]
        for row, (text, colour, often) in enumerate(features):
            top = len(features) - row
            alpha = 0.7 if colour == TEAL else 0.35
            right.add_patch(Rectangle((0, top - 0.9), 1.5, 0.8, fc=colour, alpha=alpha, lw=0))
            shade = "white" if colour == TEAL else INK
            right.text(0.75, top - 0.5, text, fontsize=12.5, color=shade, **CENTRED)
            right.text(1.7, top - 0.5, often, fontsize=11, color=colour, va="center")
        right.set_title("10 features of φ(x)", fontsize=12)
        right.text(0, -0.45, r"$\sqrt{2}\cdot\sqrt{2} = 2$ times", fontsize=12, va="center")
        right.set(xlim=(-0.1, 2.9), ylim=(-0.9, len(features) + 0.1))
        left.axis("off")
        right.axis("off")
    return figure


def caches(n: int = 1024, heads: int = 8, width: int = 64) -> Figure:
    """What one sequence keeps while decoding: areas to scale, caches of n tokens and a state."""
    sizes = {"b": 1, "d": heads * width, "h": heads}
    caches = {"multi-head": heads, "grouped": heads // 4, "multi-query": 1}
    with picture_style():
        figure = Figure(figsize=(PHONE, 3.9), layout="constrained")
        axes = figure.subplots()
        column, gap, left = 1.0, 4.4, 0.0
        for name, groups in caches.items():
            held = float(costs.decoding(groups).at(n=n, **sizes).memory)
            for head in range(groups):
                for side, colour in ((0, TEAL), (1, RUST)):
                    corner = (left + (2 * head + side) * column, 0)
                    axes.add_patch(
                        Rectangle(corner, column, 10, fc=colour, alpha=0.7, ec="white", lw=1)
                    )
            middle = left + groups * column
            _below(axes, middle, name, f"{groups} heads" if groups > 1 else "1 head", held)
            left += 2 * groups * column + gap
        state = float(costs.linear_decoding("elu", heads).at(n=1, **sizes).memory)
        one = float(costs.decoding(1).at(n=n, **sizes).memory) / 2  # the keys of one head
        side = np.sqrt(10 * column * state / one)
        axes.add_patch(Rectangle((left + 0.3, 0), side, side, fc=GREEN, alpha=0.85, lw=0))
        _below(axes, left + 0.3 + side / 2, "linear", f"{heads} heads, elu", state)
        axes.annotate(
            "", (-0.8, 0), (-0.8, 10), arrowprops={"arrowstyle": "<->", "color": FAINT, "lw": 1.2}
        )
        axes.text(-1.3, 5, f"{n} tokens", rotation=90, fontsize=11, color=FAINT, **CENTRED)
        axes.text(
            left + 0.3 + side / 2,
            side + 0.7,
            "the same\nfor any n",
            fontsize=11,
            color=GREEN,
            ha="center",
            va="bottom",
        )
        axes.text(0, 10.4, "keys", fontsize=12, color=TEAL, va="bottom")
        axes.text(3, 10.4, "and values of every head", fontsize=12, color=RUST, va="bottom")
        axes.set(xlim=(-2.0, left + side + 2.6), ylim=(-3.6, 11.6))
        axes.axis("off")
    return figure


def _below(axes: object, x: float, name: str, detail: str, held: float) -> None:
    size = f"{held / 2**20:.2g} MiB" if held >= 2**20 else f"{held / 2**10:.0f} KiB"
    for at, (text, style) in enumerate(
        ((name, {"fontweight": "bold"}), (detail, {}), (size, {"color": INK}))
    ):
        axes.text(x, -0.7 - 1.05 * at, text, fontsize=11, **CENTRED, **style)  # type: ignore


CENTRES = np.linspace(-3.5, 3.5, 24)


def bumps(x: np.ndarray) -> np.ndarray:
    """24 bumps as features, so that their kernel is a bump as well."""
    return np.exp(-0.5 * ((x[:, None] - CENTRES) / 0.45) ** 2) * 0.6


def mesa(x: np.ndarray, seen: np.ndarray, values: np.ndarray, penalty: float) -> np.ndarray:
    """Linear attention of q*, where (Σ k kᵀ + λI) q* = q: ridge regression on what was seen."""
    k, q = bumps(seen), bumps(x)
    solved = np.linalg.solve(k.T @ k + penalty * np.eye(k.shape[1]), q.T).T
    return np.asarray(
        kt.linear_attention(solved, k, values[:, None], "identity", normalize=False)[:, 0]
    )


def ridge(penalty: float = 0.1) -> Figure:
    """A ridge fit as a sum of kernels, and the fits of a Mesa layer after more and more tokens."""
    rng = np.random.default_rng(3)
    points = rng.permutation(np.linspace(-2.7, 2.7, 9))
    wanted = np.sin(1.6 * points) + 0.4 * points + 0.1 * rng.standard_normal(9)
    x = np.linspace(-3.3, 3.3, 240)
    gram = bumps(points) @ bumps(points).T
    alpha = np.linalg.solve(gram + penalty * np.eye(len(points)), wanted)
    terms = alpha * (bumps(x) @ bumps(points).T)
    fit = terms.sum(axis=1)
    assert np.allclose(fit, mesa(x, points, wanted, penalty))  # the two pictures are one
    with picture_style():
        figure = Figure(figsize=(PHONE, 3.3), layout="constrained")
        left, right = figure.subplots(1, 2, sharey=True)
        left.plot(x, terms, color=RUST, lw=1.1, alpha=0.75)
        left.plot(x, fit, color=INK, lw=2.2)
        left.plot(points, wanted, "o", color=TEAL, ms=6)
        left.set_title("ridge: a sum of kernels", fontsize=12)
        left.text(
            0.03, 0.95, "αᵢ k(xᵢ, x)", color=RUST, fontsize=12, transform=left.transAxes, va="top"
        )
        left.text(
            0.03, 0.84, "their sum", color=INK, fontsize=12, transform=left.transAxes, va="top"
        )
        for row, (count, colour) in enumerate({2: RUST, 5: PURPLE, len(points): INK}.items()):
            line = mesa(x, points[:count], wanted[:count], penalty)
            right.plot(x, line, color=colour, lw=2)
            right.text(
                0.03,
                0.95 - 0.11 * row,
                f"after {count} tokens",
                fontsize=12,
                va="top",
                color=colour,
                transform=right.transAxes,
            )
        right.plot(points, wanted, "o", color=TEAL, ms=6)
        for at, (place, value) in enumerate(zip(points, wanted, strict=True)):
            right.annotate(
                str(at + 1),
                (place, value),
                (0, 6),
                textcoords="offset points",
                fontsize=10.5,
                color=TEAL,
                ha="center",
            )
        right.set_title("Mesa: the same, token by token", fontsize=12)
        for axes in (left, right):
            axes.set(xticks=[], yticks=[], ylim=(-2.2, 3.2))
            axes.axhline(0, color=LINE, lw=1, zorder=0)
    return figure


def family() -> Figure:
    """What one key gives back while a stream goes on, by five members of one recurrence.

    S_t = D S_{t−1} − k (eᵀ D S_{t−1}) + k wᵀ. Key A is written at tokens 1 and 9, others between.
    """
    rng = np.random.default_rng(1)
    d, tokens = 16, 16
    keys = rng.standard_normal((tokens, d))
    keys[8] = keys[0]
    keys /= np.linalg.norm(keys, axis=1, keepdims=True)
    values = 0.5 * rng.standard_normal(tokens)
    values[0], values[8] = 1.0, 3.0

    asked = np.repeat(keys[:1], tokens, axis=0)

    def read(decay: float, beta: float | None) -> np.ndarray:
        given = (asked, keys, values[:, None])
        if beta is None:
            options = {"causal": True, "normalize": False, "log_decay": np.log(decay)}
            found = kt.linear_attention(*given, "identity", **options)
        else:
            found = kt.delta_rule(*given, beta, log_decay=np.log(decay), scale=1)
        return np.asarray(found[:, 0])

    members = {
        "linear attention: adds": (read(1.0, None), RUST, "-"),
        "RetNet, Mamba-2: decays and adds": (read(0.85, None), RUST, ":"),
        "DeltaNet, β = 1: corrects": (read(1.0, 1.0), TEAL, "-"),
        "DeltaNet, β = ½: half way": (read(1.0, 0.5), TEAL, ":"),
        "Gated DeltaNet: decays, corrects": (read(0.85, 1.0), PURPLE, "--"),
    }
    with picture_style():
        figure = Figure(figsize=(PHONE, 4.4), layout="constrained")
        axes = figure.subplots()
        at = np.arange(1, tokens + 1)
        for name, (found, colour, style) in members.items():
            axes.step(at, found, style, where="post", color=colour, lw=2, label=name)
        for token, value in ((1, 1), (9, 3)):
            axes.plot(token, value, "o", color=INK, ms=7, zorder=5)
            axes.annotate(
                f"A ← {value}",
                (token, value),
                (-54 if token > 1 else 7, 9),
                textcoords="offset points",
                fontsize=12,
                fontweight="bold",
            )
        axes.set(xlim=(0.6, tokens + 0.2), ylim=(-0.2, 5.2), yticks=range(6))
        axes.set_xticks([1, 5, 9, 13], ["1", "5", "9", "13"], fontsize=11)
        axes.tick_params(axis="y", labelsize=11)
        axes.grid(axis="y", color=LINE)
        axes.set_xlabel("tokens; those between write other keys", fontsize=11.5)
        axes.set_title("what key A gives back", fontsize=12, loc="left")
        figure.legend(loc="outside lower center", ncols=1, fontsize=11)
    return figure
