"""Check the inputs of the lab functions: NumPy arrays of floating-point numbers."""

from __future__ import annotations

from typing import Any

import numpy as np


def floating(**arrays: Any) -> list[np.ndarray[Any, Any]]:
    """Return the arrays. TypeError names the first one that is not floating-point.

    >>> floating(Q=np.arange(3))
    Traceback (most recent call last):
    TypeError: Q must be a NumPy array of floating-point numbers, not an array of int64
    """
    for name, x in arrays.items():
        if not isinstance(x, (np.ndarray, np.floating)):
            raise TypeError(
                f"{name} must be a NumPy array of floating-point numbers, not {type(x).__name__}"
            )
        if not np.issubdtype(x.dtype, np.floating):
            raise TypeError(
                f"{name} must be a NumPy array of floating-point numbers, not an array of {x.dtype}"
            )
    return [np.asarray(x) for x in arrays.values()]


def in_float64(**arrays: Any) -> list[np.ndarray[Any, Any]]:
    """Return the arrays in float64, the dtype in which the labs compute."""
    return [x.astype(np.float64) for x in floating(**arrays)]
