"""What `linearize` chooses by measuring: the window, and the layers that keep softmax."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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


def most_kept(layers: int, share: float, budget: int | None, sizes: tuple[int, int]) -> int:
    """How many of the layers may keep softmax: a share, or what a budget of bytes allows.

    sizes: bytes that a layer holds linearised, and by softmax.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"linearize needs a share of layers between 0 and 1, not {share}")
    if budget is None:
        return math.floor(share * layers)
    least, more = layers * sizes[0], sizes[1] - sizes[0]
    if least > budget:
        raise ValueError(
            f"the maps and windows of {layers} layers need {least:,} bytes, more than the budget "
            f"of {budget:,}; give more, or a shorter window"
        )
    return layers if more <= 0 else (budget - least) // more


def keep_layers(losses: Mapping[int, float], most: int) -> dict[int, str]:
    """The layers that keep softmax, those with the largest losses above the mean, and why."""
    mean = sum(losses.values()) / len(losses)
    worst = sorted(losses, key=lambda layer: -losses[layer])[:most]
    return {
        layer: f"alone it changes the model by {losses[layer]:.2g}; the mean is {mean:.2g}"
        for layer in sorted(worst)
        if losses[layer] > mean
    }


def is_softmax(dial: Dial) -> bool:
    return isinstance(dial.feature_map, maps.Softmax)


def with_features(dial: Dial, features: int | None, data: AttentionData) -> Dial:
    """The dial with as many features as a fit would give it, to count what its state holds."""
    own = dial.feature_map
    if features is not None and isinstance(own, maps.T2R):
        own = dataclasses.replace(own, features=features)
    elif features is not None and isinstance(own, maps.Hedgehog):
        own = dataclasses.replace(own, weight=np.zeros((data.q.shape[-1], features // 2)))
    return dataclasses.replace(dial, feature_map=own)


def _turned(dial: Dial, window: int) -> Dial:
    return dataclasses.replace(dial, window=window)


def _flat(x: Any) -> Any:
    return x.reshape(-1, *x.shape[2:])
