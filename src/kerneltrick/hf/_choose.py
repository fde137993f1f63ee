"""What `linearize` chooses by measuring: the window, and the layers that keep softmax."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from kerneltrick import maps
from kerneltrick.analysis import AttentionData
from kerneltrick.attention import Dial, linear_attention, softmax_attention

WINDOWS = (8, 16, 32, 64, 128, 256)  # from which one is chosen
ENOUGH = 0.5  # output error of the window alone, below which it is long enough for a map to help


class Chosen(NamedTuple):
    """A window, and why."""

    window: int
    why: str


def choose_window(dial: Dial, data: Sequence[AttentionData], budget: int | None) -> Chosen:
    """The shortest window that is enough by itself for half of the output; else the longest.

    None is longer than a quarter of the text: then nothing would be far. Of a budget, in bytes of
    one stream after the text, the windows that fit.
    """
    length = data[0].q.shape[2]
    known = [w for w in WINDOWS if w <= max(length // 4, WINDOWS[0])]
    if budget is not None:
        layers = len(data[0].layers)
        sizes = {w: layers * state_bytes(_turned(dial, w), data[0]) for w in known}
        known = [w for w in known if sizes[w] <= budget]
        if not known:
            raise ValueError(
                f"a window of {WINDOWS[0]} needs {sizes[WINDOWS[0]]:,} bytes, more than the budget "
                f"of {budget:,}; give more, or a map with fewer features"
            )
    errors = {}
    for w in known:
        errors[w] = window_error(w, dial.sinks, data)
        if errors[w] <= ENOUGH:
            break
    window = w
    told = ", ".join(f"{w}: {error:.2f}" for w, error in errors.items())
    return Chosen(window, f"output error of the window alone by its length is {told}")


def window_error(window: int, sinks: int, data: Sequence[AttentionData]) -> float:
    """Mean output error of softmax over the window and sinks alone, over heads and texts."""
    found = []
    for each in data:
        q, k, v = (_flat(x) for x in (each.q, each.k, each.v))
        how: dict[str, Any] = {"causal": each.causal, "scale": each.scale}
        exact = softmax_attention(q, k, v, **how)
        near = softmax_attention(q, k, v, window=window, sinks=sinks, **how)
        lost, size = ((x**2).sum((-2, -1)) for x in (near - exact, exact))
        found.append(np.sqrt(lost / size).mean())
    return float(np.mean(found))


def state_bytes(dial: Dial, data: AttentionData) -> int:
    """Bytes that one layer's stream holds after these tokens; 0 if it attends to all of them."""
    if not data.causal:
        return 0
    q, k, v = (np.asarray(x[0], dtype=np.float32) for x in (data.q, data.k, data.v))
    how: dict[str, Any] = {"causal": True, "scale": data.scale, "return_state": True}
    _, state = linear_attention(q, k, v, dial, on_zero="zero", **how)
    return int(state.nbytes)


def keep_layers(
    errors: Mapping[int, float],
    keep: Sequence[int] | Literal["auto"],
    share: float,
    budget: int | None,
    sizes: tuple[int, int],
) -> dict[int, str]:
    """The layers that keep softmax, and why.

    budget: bytes of all layers, of which one takes sizes[0] by its map and sizes[1] by softmax.
    """
    if keep != "auto":
        return {layer: f"as asked (error {errors[layer]:.2f})" for layer in sorted(keep)}
    if not 0 <= share <= 1:
        raise ValueError(f"linearize needs a share of layers between 0 and 1, not {share}")
    most = math.floor(share * len(errors))
    if budget is not None:
        least, more = len(errors) * sizes[0], sizes[1] - sizes[0]
        if least > budget:
            raise ValueError(
                f"the maps and windows of {len(errors)} layers need {least:,} bytes, more than the "
                f"budget of {budget:,}; give more, or a shorter window"
            )
        most = len(errors) if more <= 0 else (budget - least) // more
    mean = sum(errors.values()) / len(errors)
    worst = sorted(errors, key=lambda layer: -errors[layer])[:most]
    return {
        layer: f"error {errors[layer]:.2f} after the fit, the mean is {mean:.2f}"
        for layer in sorted(worst)
        if errors[layer] > mean
    }


def is_softmax(dial: Dial) -> bool:
    return isinstance(dial.feature_map, maps.Softmax)


def _turned(dial: Dial, window: int) -> Dial:
    return dataclasses.replace(dial, window=window)


def _flat(x: Any) -> Any:
    return x.reshape(-1, *x.shape[2:])
