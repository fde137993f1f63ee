"""Draw docs/images/recall.png: recall against the size of the memory and the age of a pair.

    python tools/make_recall.py

The left half is the curve of lab 07, the right half section 5 of docs/07_based.md.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from generated import save_picture
from matplotlib.figure import Figure

import kerneltrick as kt
from kerneltrick._pictures import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    LINE,
    ORANGE,
    PURPLE,
    picture_style,
)
from kerneltrick.labs import based

COLOURS = {
    "ELU+1": GREEN, "exp": "#b3903a", "identity": FAINT, "random features": PURPLE,
    "Taylor": BLUE, "softmax": INK,
}  # fmt: skip
WINDOW, PAIRS, SHARPNESS = 16, 96, 4.0


def recall_by_age(attend: Callable[..., np.ndarray], seeds: int = 20) -> np.ndarray:
    """Return the share of recalled pairs by age, for keys and values of 16 dimensions."""
    right = np.zeros(PAIRS)
    for seed in range(seeds):
        keys, values, _ = based.recall_task(PAIRS, 16, 16, SHARPNESS, seed)
        for j in range(PAIRS):
            queries = np.vstack([keys[:-1], keys[j]])
            right[PAIRS - 1 - j] += np.argmax(values @ attend(queries, keys, values)[-1]) == j
    return right / seeds


def draw() -> Figure:
    memories = {
        "state alone": (
            BLUE,
            lambda q, k, v: kt.linear_attention(q, k, v, "taylor:order=2", causal=True),
        ),
        f"window of {WINDOW} alone": (
            ORANGE,
            lambda q, k, v: based.sliding_window_attention(q, k, v, WINDOW),
        ),
        "both, one normaliser": (
            INK,
            lambda q, k, v: based.windowed_taylor_attention(q, k, v, WINDOW),
        ),
    }
    with picture_style():
        figure = Figure(figsize=(9.4, 3.7), layout="constrained")
        left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
        for name, points in based.recall_curves().items():
            held, recall = [p[1] for p in points], [p[2] for p in points]
            style = "o--" if name == "softmax" else "o-"
            left.plot(held, recall, style, color=COLOURS[name], ms=4, lw=1.4, label=name)
            for d, x, y in points:
                if name in ("Taylor", "identity") and d in (8, 16, 64) and 0.1 < y < 0.99:
                    below = name == "Taylor"
                    left.annotate(f"d′ = {d}", (x, y), (6, -9) if below else (-5, 5),
                                  textcoords="offset points", ha="left" if below else "right",
                                  fontsize=7.5, color=COLOURS[name])  # fmt: skip
        left.set(xscale="log", ylim=(-0.04, 1.06), xlabel="numbers held: U and Z, or all keys and "
                 "values", title="recall of 64 pairs, d′ from 2 to 64")  # fmt: skip
        left.set_xticks([100, 1000, 10_000], ["100", "1,000", "10,000"])
        left.grid(axis="y", color=LINE)
        left.legend(loc="upper left")
        groups = np.arange(PAIRS).reshape(-1, 4)
        for name, (colour, attend) in memories.items():
            shares = recall_by_age(attend).reshape(-1, 4).mean(axis=1)
            right.plot(groups.mean(axis=1), shares, color=colour, lw=1.5, label=name)
        right.axvline(WINDOW - 0.5, color=FAINT, lw=0.9, ls=":")
        right.set(ylim=(-0.04, 1.06), xlabel="age of the pair, tokens",
                  title=f"recall by age, Taylor, d′ = 16, sharpness {SHARPNESS:g}")  # fmt: skip
        right.grid(axis="y", color=LINE)
        right.legend(loc="upper right")
    return figure


if __name__ == "__main__":
    save_picture(draw(), "recall.png")
