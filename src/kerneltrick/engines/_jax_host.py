"""What JAX is doing with the arrays of a call."""

from __future__ import annotations

from typing import Any

import jax

from kerneltrick.engines._engine import Host
from kerneltrick.engines._xla_call import unavailable


def host(arrays: tuple[Any, ...]) -> Host:
    """How JAX treats a call with these arrays, the weights of its map among them."""
    if unavailable():
        return "foreign"
    given = (x for x in arrays if isinstance(x, jax.Array) and not isinstance(x, jax.core.Tracer))
    elsewhere = any(device.platform != "cpu" for x in given for device in x.devices())
    return "foreign" if elsewhere else "recorded"
