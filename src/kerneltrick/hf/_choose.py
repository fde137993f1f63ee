"""Choices that `linearize` makes: the window, and the layers or heads that keep softmax."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from kerneltrick import maps
from kerneltrick._text import shown
from kerneltrick.analysis import AttentionData
from kerneltrick.attention import Dial, linear_attention, softmax_attention

WINDOWS = (8, 16, 32, 64, 128, 256)  # the windows to choose from
ENOUGH = 0.5  # a window is long enough if its output error alone is at most this


class Chosen(NamedTuple):
    """A window, and the reason for it."""

    window: int
    why: str


def choose_window(dial: Dial, data: Sequence[AttentionData], budget: int | None) -> Chosen:
    """Return the shortest window that gives half of the output by itself, else the longest.

    Windows longer than a quarter of the text are not tried, as they would leave little to the map.

    budget: the bytes that one stream may hold after the text. Windows that need more are skipped.
    """
    length = data[0].q.shape[2]
    known = [w for w in WINDOWS if w <= max(length // 4, WINDOWS[0])]
    if budget is not None:
        layers = len(data[0].layers)
        sizes = {
            w: layers * state_bytes(dataclasses.replace(dial, window=w), data[0]) for w in known
        }
        known = [w for w in known if sizes[w] <= budget]
        if not known:
            raise ValueError(
                f"a window of {WINDOWS[0]} needs {sizes[WINDOWS[0]]:,} bytes, more than the budget "
                f"of {budget:,}; use a larger budget, or a map with fewer features"
            )
    errors = {}
    for w in known:
        errors[w] = window_error(w, dial.alike("choose_window")[1], data)
        if errors[w] <= ENOUGH:
            break
    measured = ", ".join(f"{size}: {error:.2f}" for size, error in errors.items())
    return Chosen(w, f"the output error of the window alone, by its length, is {measured}")


def window_error(window: int, sinks: int, data: Sequence[AttentionData]) -> float:
    """Return the output error of softmax over the window and sinks alone, averaged over heads."""
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
    """Return the bytes that one layer holds for one stream after these tokens; 0 for encoders."""
    if not data.causal:
        return 0
    q, k, v = (np.asarray(x[0], dtype=np.float32) for x in (data.q, data.k, data.v))
    how: dict[str, Any] = {"causal": True, "scale": data.scale, "return_state": True}
    _, state = linear_attention(q, k, v, dial, on_zero="zero", **how)
    return int(state.nbytes)


def most_kept(
    count: int, share: float, budget: int | None, sizes: tuple[float, float], unit: str = "layer"
) -> int:
    """Return how many layers or heads may keep softmax: a share of them, or what a budget allows.

    count: the number of layers or heads.
    budget: the bytes that one stream may hold; None uses `share`.
    sizes: the bytes that one holds when it is linearised, and with softmax.
    unit: what is counted, for messages.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"linearize needs a share of {unit}s between 0 and 1, not {share}")
    if budget is None:
        return math.floor(share * count)
    least, more = count * sizes[0], sizes[1] - sizes[0]
    if least > budget:
        raise ValueError(
            f"the maps and windows of {count} {unit}s need {least:,.0f} bytes, more than the "
            f"budget of {budget:,}; use a larger budget, or a shorter window"
        )
    return count if more <= 0 else min(count, math.floor((budget - least) / more))


def keep_layers(losses: Mapping[int, float], most: int) -> dict[int, str]:
    """Return the layers that keep softmax, with the reason: those with the largest losses."""
    mean = sum(losses.values()) / len(losses)
    worst = sorted(losses, key=lambda layer: -losses[layer])[:most]
    return {
        layer: f"alone, it changes the model by {shown(losses[layer], 2)}; the mean is "
        f"{shown(mean, 2)}"
        for layer in sorted(worst)
        if losses[layer] > mean
    }


def is_softmax(dial: Dial) -> bool:
    """Return whether a dial has no feature map."""
    return not dial.feature_map.has_features


def is_exact(dial: Dial) -> bool:
    """Return whether all heads of a dial see the whole text."""
    return is_softmax(dial) and not dial.near


def with_features(dial: Dial, features: int | None, data: AttentionData) -> Dial:
    """Return the dial with as many features as a fit would give it, to count its bytes."""
    own = dial.feature_map
    if features is not None and isinstance(own, maps.T2R):
        own = dataclasses.replace(own, features=features)
    elif features is not None and isinstance(own, maps.Hedgehog):
        own = dataclasses.replace(own, weight=np.zeros((data.q.shape[-1], features // 2)))
    return dataclasses.replace(dial, feature_map=own)


def _flat(x: Any) -> Any:
    return x.reshape(-1, *x.shape[2:])
