"""Measure which units of far weights combine best with exact near weights, on the sample.

    python tools/measure_far.py            print the mean error of each map, by units and gain
    python tools/measure_far.py --each     the same for every window and number of sinks

The error of a head is ‖O − softmax's O‖ / ‖softmax's O‖. A cell is the mean over all heads, full
and causal attention, windows and sinks. `far=None` is the default, e^g = 1/unit(d).
"""

from __future__ import annotations

import argparse
import functools
import itertools

import numpy as np

import kerneltrick as kt
from kerneltrick import analysis

MAPS = [
    "elu", "relu", "relu2", "exp", "square", "cosformer:horizon=128", "favor:features=64",
    "favor:features=64,kind=hyperbolic", "poly:degree=2", "taylor:order=2", "hedgehog",
    "hedgehog:separate=true", "hedgehog:activation=exp", "t2r:features=64",
]  # fmt: skip
GAINS = (-8, -6, -4, -2, 0, 2, 4)
SETTINGS = tuple(itertools.product((8, 16, 32), (0, 1)))  # window, sinks

Array = np.ndarray
Settings = tuple[tuple[int, int], ...]


def errors(out: Array, exact: Array) -> Array:
    """Return one number per layer and head."""
    axes = (-2, -1)
    return np.linalg.norm(out - exact, axis=axes) / np.linalg.norm(exact, axis=axes)


@functools.cache
def exact_output(causal: bool) -> Array:
    data = analysis.sample()
    return np.asarray(kt.softmax_attention(data.q, data.k, data.v, causal=causal))


def measure(
    text: str, fars: list[kt.Far | None], settings: tuple[tuple[int, int], ...]
) -> list[float]:
    """Return the mean error for each of these units."""
    data = analysis.sample()
    q, k, v = data.q, data.k, data.v
    found = []
    for far in fars:
        cells = []
        for (window, sinks), causal in itertools.product(settings, (False, True)):
            out = kt.linear_attention(
                q, k, v, text, window=window, sinks=sinks, far=far,
                causal=causal, on_zero="zero", engine="dense",
            )  # fmt: skip
            cells.append(errors(out, exact_output(causal)).mean())
        found.append(float(np.mean(cells)))
    return found


def table(settings: Settings) -> None:
    heads = [*(f"g={gain:+d}" for gain in GAINS), "far=None"]
    print(f"{'map':34} {'units':9}", *(head.rjust(8) for head in heads))
    alone = measure("softmax", [None], settings)[0]
    print(f"{'softmax (the window alone)':34} {'':9} {alone:8.3f}")
    for text in MAPS:
        for relative in (False, True):
            units = "relative" if relative else "absolute"
            fars = [kt.Far(gain, relative) for gain in GAINS]
            row = measure(text, [*fars, *([] if relative else [None])], settings)
            print(f"{text:34} {units:9}", *(f"{x:8.3f}" for x in row), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--each", action="store_true", help="print a table for each window and number of sinks"
    )
    if not parser.parse_args().each:
        table(SETTINGS)
        return
    for window, sinks in SETTINGS:
        print(f"\nwindow {window}, sinks {sinks}")
        table(((window, sinks),))


if __name__ == "__main__":
    main()
