"""Check the arguments of the simulations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]

LARGEST = 2**27  # numbers in one array: a gigabyte


def whole(who: str, name: str, value: Any, least: int = 1) -> int:
    """A whole number ≥ `least`."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise ValueError(f"{who} needs {name} to be a whole number ≥ {least}, not {value!r}")
    return int(value)


def wholes(who: str, name: str, values: Sequence[Any], least: int = 1) -> tuple[int, ...]:
    """At least one whole number ≥ `least`, sorted and without repeats."""
    found = sorted({whole(who, name, value, least) for value in values})
    if not found:
        raise ValueError(f"{who} needs at least one number of {name}")
    return tuple(found)


def positive(who: str, name: str, value: Any) -> float:
    """A finite number > 0."""
    if isinstance(value, bool) or not math.isfinite(value) or not value > 0:
        raise ValueError(f"{who} needs {name} > 0 and finite, not {value!r}")
    return float(value)


def finite(who: str, name: str, value: Any) -> float:
    """A finite number."""
    if isinstance(value, bool) or not math.isfinite(value):
        raise ValueError(f"{who} needs a finite {name}, not {value!r}")
    return float(value)


def fits(who: str, *sizes: int) -> None:
    """Raise ValueError if an array of these sizes would fill the memory."""
    if math.prod(sizes) > LARGEST:
        shape = "×".join(str(size) for size in sizes)
        raise ValueError(
            f"{who} would need an array of {shape} numbers; at most {LARGEST:,} are allowed"
        )
