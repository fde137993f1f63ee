"""Calls of the short convolution and the selective scan, and what they must give."""

import numpy as np
from oracle import convolved, scanned

import kerneltrick as kt

CONVOLUTION = ("x", "weight", "bias", "state")
SCAN = ("x", "dt", "A", "B", "C", "D", "z", "dt_bias", "state")


def convolution_case(rng, lead, n, channels, taps, *, bias=True, state=True):
    """The arrays of a short convolution, in float64."""
    made = {"x": rng.standard_normal((*lead, n, channels)),
            "weight": rng.standard_normal((channels, taps))}  # fmt: skip
    if bias:
        made["bias"] = rng.standard_normal(channels)
    if state:
        made["state"] = rng.standard_normal((*lead, taps - 1, channels))
    return made


def scan_case(rng, lead, n, channels, states, *, extras=True, state=True, signed=False):
    """The arrays of a selective scan, in float64, with slow decays, fast ones and extreme ones.

    A `signed` dt is for softplus alone: as Δ itself it would let states grow without end.
    """
    made = {
        "x": rng.standard_normal((*lead, n, channels)),
        "dt": rng.standard_normal((*lead, n, channels)) - 1,
        "A": -np.exp(rng.choice([2, 9], (channels, 1)) * rng.standard_normal((channels, states))),
        "B": rng.standard_normal((*lead, n, states)),
        "C": rng.standard_normal((*lead, n, states)),
    }
    if extras:
        made["D"] = rng.standard_normal(channels)
        made["z"] = rng.standard_normal((*lead, n, channels))
        made["dt_bias"] = rng.standard_normal(channels)
    if state:
        made["state"] = rng.standard_normal((*lead, channels, states))
    made["A"] = np.maximum(made["A"], -6e4)  # which float16 has
    if not signed:
        made |= {name: np.abs(made[name]) for name in ("dt", "dt_bias") if name in made}
    return made


def tokens_case(rng, lead, n, masked, packed):
    """A mask and segment_ids, or neither."""
    made = {}
    if masked:
        made["mask"] = rng.random((*lead, n)) < 0.7
    if packed:
        made["segment_ids"] = np.cumsum(rng.random((*lead, n)) < 0.2, axis=-1)
    return made


def run(operator, arrays, **options):
    """The operator by name, with all arrays as keywords."""
    return getattr(kt, operator)(**arrays, return_state=True, **options)


def expected(operator, arrays, tokens, **options):
    """Output and state by the oracle, row by row in float64."""
    lead = arrays["x"].shape[:-2]
    shared = ("weight", "bias", "A", "D", "dt_bias")
    oracle = convolved if operator == "short_convolution" else scanned
    if operator == "short_convolution":
        options = {"silu": options.get("activation") is not None}
    made = []
    for index in np.ndindex(*lead):
        own = {k: x if k in shared else x[index] for k, x in arrays.items()}
        made.append(oracle(**own, **{k: x[index] for k, x in tokens.items()}, **options))
    outputs, states = zip(*made, strict=True)
    return (np.reshape(outputs, arrays["x"].shape),
            np.reshape(states, (*lead, *states[0].shape)))  # fmt: skip
